/* replay_main.c - runs a fuzz target over files: those given, and all in the directories given. For compilers
 * without libFuzzer, and to look at a finding in a debugger. */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) return 0;
    uint8_t *data = NULL;
    size_t n = 0, got = 0;
    do { /* an exact allocation, so that a sanitizer sees a read past the end */
        uint8_t *more = realloc(data, n + 65536);
        if (more == NULL) break;
        data = more;
        got = fread(data + n, 1, 65536, file);
        n += got;
    } while (got > 0);
    const int failed = ferror(file);
    fclose(file);
    if (failed) { /* a directory, say */
        free(data);
        return 0;
    }
    uint8_t *exact = realloc(data, n > 0 ? n : 1);
    if (exact != NULL) data = exact;
    LLVMFuzzerTestOneInput(data, n);
    free(data);
    return 1;
}

int main(int argc, char **argv)
{
    int n_run = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (dir == NULL) {
            n_run += replay_file(argv[i]);
            continue;
        }
        for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
            char path[4096];
            if (entry->d_name[0] == '.') continue;
            if (snprintf(path, sizeof path, "%s/%s", argv[i], entry->d_name) < (int)sizeof path)
                n_run += replay_file(path);
        }
        closedir(dir);
    }
    printf("%d inputs replayed\n", n_run);
    return n_run > 0 ? 0 : 1; /* a corpus that is not found is a failure */
}
