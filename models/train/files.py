"""Files that are whole or absent, and refusals that are one sentence."""
import json
import os
import sys


class Refusal(Exception):
    """The input is at fault; the text says what, where, and what to do."""


def command(main):
    """Runs a command; a refusal is printed without a traceback. Ends with main's exit code."""
    try:
        sys.exit(main())
    except Refusal as refusal:
        sys.exit("%s: %s" % (os.path.basename(sys.argv[0]), refusal))
    except KeyboardInterrupt:
        sys.exit(130)


def write_whole(path, write):
    """write(temporary path), then takes the place of `path` in one step: a kill leaves the old file or the new one."""
    beside = path + ".part"
    try:
        write(beside)
        with open(beside, "rb+") as f:
            os.fsync(f.fileno())
        os.chmod(beside, 0o644)  # some writers make files that only their owner reads
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.remove(beside)  # a part of what a full disk had no room for is of no use
        raise


def write_text(path, text):
    def write(to):
        with open(to, "w", encoding="utf-8") as f:
            f.write(text)
    write_whole(path, write)


def write_json(path, value):
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path):
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        raise Refusal("there is no %s" % path)
    except (ValueError, OSError) as error:
        raise Refusal("%s cannot be read as JSON: %s" % (path, error))
