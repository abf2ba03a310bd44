/*
 * Runs stdio operations that it reads from standard input, one per line, and prints the result of
 * each on a line of its own. The test files_against_c.rs compares them with hostcall's.
 *
 * Streams are numbered by the test. Byte strings are in hexadecimal, "-" if empty.
 *
 *   open S PATH MODE     1 or 0
 *   close S              int
 *   read S COUNT         bytes
 *   gets S SIZE          bytes without the terminating zero, or "null"
 *   write S BYTES        count
 *   seek S OFFSET WHENCE int
 *   tell S               long
 *   unget S CHARACTER    int
 *   eof S, error S       1 or 0
 *   clear S              0
 *   flush S, flushall    int
 *   remove PATH          int
 *   rename FROM TO       int
 *   chdir PATH           int; the host's side of things, to move to the next sequence
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STREAMS 16
#define MOST 65536

static FILE *streams[STREAMS];
static char line[4 * MOST];
static unsigned char bytes[MOST];

static size_t from_hex(const char *text) {
    size_t count = 0;
    if (strcmp(text, "-") == 0)
        return 0;
    for (; text[0] && text[1] && count < MOST; text += 2) {
        unsigned value;
        sscanf(text, "%2x", &value);
        bytes[count++] = (unsigned char)value;
    }
    return count;
}

static void put_hex(size_t count) {
    if (count == 0)
        putchar('-');
    for (size_t i = 0; i < count; i++)
        printf("%02x", bytes[i]);
    putchar('\n');
}

/*
 * How many bytes fgets stored: the string may contain zeros. The buffer is filled with 0xaa before,
 * and fgets leaves what lies behind its terminator alone, so the terminator is the last byte that
 * is not 0xaa. The test writes no 0xaa.
 */
static size_t stored(size_t size) {
    size_t end = size;
    while (end > 0 && bytes[end - 1] == 0xaa)
        end--;
    return end == 0 ? 0 : end - 1;
}

int main(void) {
    /* So that the answers up to a crash are seen. */
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    while (fgets(line, sizeof line, stdin)) {
        char *argument[4] = {"", "", "", ""};
        int count = 0;
        for (char *word = strtok(line, " \n"); word && count < 4; word = strtok(NULL, " \n"))
            argument[count++] = word;
        const char *what = argument[0];
        int number = atoi(argument[1]) % STREAMS;
        FILE *stream = streams[number];
        if (!stream && argument[1][0] >= '0' && argument[1][0] <= '9' && strcmp(what, "open") != 0) {
            /* Only after a difference, which the test reports. */
            puts("no stream");
        } else if (strcmp(what, "open") == 0) {
            streams[number] = fopen(argument[2], argument[3]);
            printf("%d\n", streams[number] != NULL);
        } else if (strcmp(what, "close") == 0) {
            streams[number] = NULL;
            printf("%d\n", fclose(stream));
        } else if (strcmp(what, "read") == 0) {
            put_hex(fread(bytes, 1, (size_t)atol(argument[2]), stream));
        } else if (strcmp(what, "gets") == 0) {
            int size = atoi(argument[2]);
            memset(bytes, 0xaa, sizeof bytes);
            if (fgets((char *)bytes, size, stream))
                put_hex(stored((size_t)size));
            else
                puts("null");
        } else if (strcmp(what, "write") == 0) {
            size_t length = from_hex(argument[2]);
            printf("%zu\n", fwrite(bytes, 1, length, stream));
        } else if (strcmp(what, "seek") == 0) {
            printf("%d\n", fseek(stream, atol(argument[2]), atoi(argument[3])));
        } else if (strcmp(what, "tell") == 0) {
            printf("%ld\n", ftell(stream));
        } else if (strcmp(what, "unget") == 0) {
            printf("%d\n", ungetc(atoi(argument[2]), stream));
        } else if (strcmp(what, "eof") == 0) {
            printf("%d\n", feof(stream) != 0);
        } else if (strcmp(what, "error") == 0) {
            printf("%d\n", ferror(stream) != 0);
        } else if (strcmp(what, "clear") == 0) {
            clearerr(stream);
            puts("0");
        } else if (strcmp(what, "flush") == 0) {
            printf("%d\n", fflush(stream));
        } else if (strcmp(what, "flushall") == 0) {
            printf("%d\n", fflush(NULL));
        } else if (strcmp(what, "remove") == 0) {
            printf("%d\n", remove(argument[1]));
        } else if (strcmp(what, "rename") == 0) {
            printf("%d\n", rename(argument[1], argument[2]));
        } else if (strcmp(what, "chdir") == 0) {
            printf("%d\n", chdir(argument[1]));
        } else {
            printf("? %s\n", what);
        }
    }
    return 0;
}
