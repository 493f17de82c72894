/* A llama-server that loads as long as the file $LLMGW_TEST_HOLD is there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

FILE *fopen(const char *path, const char *mode) {
  FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
  const char *held = getenv("LLMGW_TEST_HOLD");
  size_t length = strlen(path);
  if (held && length > 5 && !strcmp(path + length - 5, ".gguf"))
    while (access(held, F_OK) == 0)
      usleep(5000);
  return real(path, mode);
}
