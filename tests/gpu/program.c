/* A C program for the loader's tests: what it does is its first argument. */
#include "start.h"

static int environment(char **envp, const char *wanted) {
  for (; *envp; ++envp)
    if (gpu_equal(*envp, wanted))
      return 1;
  return 0;
}

int main(int argc, char **argv, char **envp) {
  const char *verb = argc > 1 ? argv[1] : "nothing";
  int number = argc > 2 ? gpu_number(argv[2]) : 0;

  if (gpu_equal(verb, "return"))
    return number;
  if (gpu_equal(verb, "arguments")) {
    for (int i = 1; i < argc; ++i) {
      gpu_print(argv[i]);
      gpu_print("\n");
    }
    if (argv[argc] != 0)
      return 2;
    return environment(envp, "HOSTCALL_TEST=a value") ? 0 : 3;
  }
  if (gpu_equal(verb, "exit")) {
    gpu_print("before the end\n");
    gpu_exit(number);
  }
  if (gpu_equal(verb, "abort"))
    gpu_abort();
  if (gpu_equal(verb, "fault")) {
    gpu_print("before the fault\n");
    gpu_trap();
  }
  if (gpu_equal(verb, "hang"))
    for (;;)
      gpu_free(0);
  if (gpu_equal(verb, "write")) {
    /* A file that is not closed; then as another argument says. */
    unsigned long file = argc > 2 ? gpu_open(argv[2], "w") : 0;
    if (!file)
      return 20;
    if (gpu_write(file, "written\n") != 8)
      return 21;
    gpu_print("wrote\n");
    while (argc > 3 && gpu_equal(argv[3], "hang"))
      gpu_free(0);
    return 0;
  }
  if (gpu_equal(verb, "system"))
    return gpu_system(argv[2]) == 0 ? 0 : 30;
  if (gpu_equal(verb, "unknown"))
    return gpu_unknown() == 0 ? 5 : 6;
  if (gpu_equal(verb, "constructed"))
    return gpu_constructed();
  if (gpu_equal(verb, "malloc")) {
    /* All that there is, in pieces of a mebibyte; then once more after giving one back. */
    char *last = 0;
    int count = 0;
    for (char *piece; (piece = (char *)gpu_malloc(1 << 20)) != 0; ++count) {
      piece[0] = piece[(1 << 20) - 1] = 7;
      last = piece;
    }
    gpu_free(last);
    return last && gpu_malloc(1 << 20) ? count : 255;
  }
  if (gpu_equal(verb, "copy")) {
    char line[256];
    while (gpu_read_line(line, sizeof line))
      gpu_print(line);
    gpu_complain("copied\n");
    return 0;
  }
  if (gpu_equal(verb, "threads")) {
    gpu_print("a thread\n");
    return gpu_thread() == (unsigned)number ? 16 : 1;
  }
  return 100;
}
