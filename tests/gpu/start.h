/* What the loader's test programs find instead of a C library. See start.cpp. */
#ifndef START_H
#define START_H
#ifdef __cplusplus
extern "C" {
#endif

/* Writes a string to standard output, or to standard error; returns the bytes written. */
unsigned long gpu_print(const char *text);
unsigned long gpu_complain(const char *text);
/* Reads a line of standard input with its newline; returns its length, 0 at the end. */
unsigned long gpu_read_line(char *line, unsigned long size);
/* Memory of the host's heap; null when it is empty. */
void *gpu_malloc(unsigned long size);
void gpu_free(void *memory);
/* Opens a file, as fopen; 0 where that fails. Writes a string to it; returns the bytes written. */
unsigned long gpu_open(const char *path, const char *mode);
unsigned long gpu_write(unsigned long file, const char *text);
/* What C's system returns. */
int gpu_system(const char *command);
/* End the program. */
void gpu_exit(int status);
void gpu_abort(void);
/* Faults. */
void gpu_trap(void);
/* A call that no host has a handler for; 0 where it came back with zeros. */
unsigned long gpu_unknown(void);
/* What the constructors have left: 12 where both ran in their order. */
int gpu_constructed(void);
/* The number of this thread in the grid. */
unsigned gpu_thread(void);
int gpu_equal(const char *a, const char *b);
int gpu_number(const char *text);

#ifdef __cplusplus
}
#endif
#endif
