// Prints what snprintf makes of each case on standard input, as hex, one line each.
// A case: format (hex), kind, number of stars, both star values, value (hex of 64 bits, or of bytes).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char format[4096], text[1 << 16], string[1 << 16], value[1 << 16];

static size_t unhex(const char *hex, char *out) {
  size_t n = 0;
  for (; hex[0] && hex[1]; hex += 2) {
    char byte[3] = {hex[0], hex[1], 0};
    out[n++] = (char)strtoul(byte, NULL, 16);
  }
  out[n] = 0;
  return n;
}

#define PRINT(argument)                                                                            \
  (stars == 0   ? snprintf(text, sizeof text, format, argument)                                    \
   : stars == 1 ? snprintf(text, sizeof text, format, first, argument)                             \
                : snprintf(text, sizeof text, format, first, second, argument))

int main(void) {
  static char hex[8192];
  char kind;
  int stars, first, second;
  while (scanf("%8191s %c %d %d %d %65535s", hex, &kind, &stars, &first, &second, value) == 6) {
    unhex(hex, format);
    unsigned long long bits = strtoull(value, NULL, 16);
    int length = -1;
    double number;
    memcpy(&number, &bits, sizeof number);
    switch (kind) {
    case 'i': length = PRINT((int)bits); break;
    case 'l': length = PRINT(bits); break;
    case 'd': length = PRINT(number); break;
    case 'p': length = PRINT((void *)bits); break;
    case 's': unhex(value + 1, string); length = PRINT(string); break;
    case 'n': length = PRINT((char *)NULL); break;
    case '%': length = PRINT(0); break;
    }
    printf("%d ", length);
    for (int i = 0; i < length; i++)
      printf("%02x", (unsigned char)text[i]);
    putchar('\n');
  }
  return 0;
}
