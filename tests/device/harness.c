/* Calls one kernel on memory that a file describes, and writes what the memory holds afterwards.

   arguments: the kernel's input file, the output file
   input:  int64 buffers, then for each: kind, bytes, offset from 64-byte alignment, and the bytes themselves;
           int64 sizes and each of them; int64 tasks and (begin, end) of each
   output: int32 for each task what the kernel returned, then the bytes of each buffer
   kinds:  0 between guard bytes; 1 right behind, 2 right before a page that cannot be touched; 3 scratch: between
           guard bytes, and poisoned before each task
   exit:   0, 2 guard bytes were written (said on stderr), 3 the file is not what it should be; a signal for a fence */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD = 4096, PAGE = 65536, PLAIN = 0, AFTER = 1, BEFORE = 2, SCRATCH = 3 };

typedef struct {
  int32_t type;
  int32_t unused;
  int64_t value;
} Any;

typedef struct {
  int64_t kind, count, offset;
  unsigned char *memory, *inside;
} Buffer;

extern int __tvm_ffi_tg_test(void* self, Any* args, int32_t count, Any* result);
extern void (*tilegraph_set_error_parts)(const char* kind, const char** parts, int n);

static void report(const char* kind, const char** parts, int n) {
  fprintf(stderr, "%s:", kind);
  for (int k = 0; k < n; ++k) fprintf(stderr, " %s", parts[k]);
  fputc('\n', stderr);
}

static void get(FILE* file, void* into, size_t count) {
  if (fread(into, 1, count, file) != count) exit(3);
}

static int64_t number(FILE* file) {
  int64_t value;
  get(file, &value, sizeof value);
  return value;
}

static void place(Buffer* b) {
  if (b->kind == AFTER || b->kind == BEFORE) {
    size_t room = ((size_t)b->count + PAGE - 1) / PAGE * PAGE + (b->count ? 0 : PAGE);
    b->memory = mmap(0, room + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->memory == MAP_FAILED) exit(3);
    b->inside = b->memory + PAGE + (b->kind == BEFORE ? room - (size_t)b->count : 0);
    if (mprotect(b->memory, PAGE, PROT_NONE) || mprotect(b->memory + PAGE + room, PAGE, PROT_NONE)) exit(3);
    return;
  }
  size_t room = 2 * GUARD + 64 + (size_t)b->count;
  b->memory = aligned_alloc(64, (room + 63) / 64 * 64);
  if (!b->memory) exit(3);
  memset(b->memory, 0xA7, room);
  b->inside = b->memory + GUARD + b->offset;
}

static int guarded(const Buffer* b, int64_t index) {
  if (b->kind == AFTER || b->kind == BEFORE) return 1;
  const unsigned char* end = b->memory + 2 * GUARD + 64 + b->count;
  for (const unsigned char* p = b->memory; p < end; ++p) {
    if (p == b->inside) p += b->count;
    if (p < end && *p != 0xA7) {
      fprintf(stderr, "a byte %s buffer %lld was overwritten\n", p < b->inside ? "before" : "after", (long long)index);
      return 0;
    }
  }
  return 1;
}

int main(int argc, char** argv) {
  FILE* file = argc == 3 ? fopen(argv[1], "rb") : 0;
  if (!file) return 3;
  tilegraph_set_error_parts = report;
  int64_t buffers = number(file);
  Buffer* all = calloc((size_t)buffers + 1, sizeof *all);
  for (int64_t k = 0; k < buffers; ++k) {
    all[k].kind = number(file), all[k].count = number(file), all[k].offset = number(file);
    place(&all[k]);
    get(file, all[k].inside, (size_t)all[k].count);
  }
  int64_t sizes = number(file), values = buffers + sizes + 2;
  Any* args = calloc((size_t)values, sizeof *args);
  for (int64_t k = 0; k < buffers; ++k) args[k].type = 4, args[k].value = (int64_t)(intptr_t)all[k].inside;
  for (int64_t k = buffers; k < values; ++k) args[k].type = 1;
  for (int64_t k = 0; k < sizes; ++k) args[buffers + k].value = number(file);
  int64_t tasks = number(file);
  int32_t* returned = calloc((size_t)tasks + 1, sizeof *returned);
  for (int64_t t = 0; t < tasks; ++t) {
    for (int64_t k = 0; k < buffers; ++k) {
      if (all[k].kind == SCRATCH) memset(all[k].inside, 0xFF, (size_t)all[k].count);
    }
    args[values - 2].value = number(file), args[values - 1].value = number(file);
    Any result = {0, 0, 0};
    returned[t] = __tvm_ffi_tg_test(0, args, (int32_t)values, &result);
  }
  fclose(file);
  for (int64_t k = 0; k < buffers; ++k) {
    if (!guarded(&all[k], k)) return 2;
  }
  file = fopen(argv[2], "wb");
  if (!file) return 3;
  fwrite(returned, sizeof *returned, (size_t)tasks, file);
  for (int64_t k = 0; k < buffers; ++k) fwrite(all[k].inside, 1, (size_t)all[k].count, file);
  return fclose(file) ? 3 : 0;
}
