/* Linked into every kernel library, so that it needs nothing of TVM when it is loaded.

   A kernel that checks its arguments reports a failure through this one function. It forwards to a pointer that
   the loader fills; while that is null the report is dropped and the caller sees the non-zero result only.
   No header is included: a compiler without the C library's headers can build this. */

typedef void (*tilegraph_error_parts)(const char* kind, const char** parts, int n);

__attribute__((visibility("default"))) tilegraph_error_parts tilegraph_set_error_parts = 0;

__attribute__((visibility("hidden"))) void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts,
                                                                             int n) {
  tilegraph_error_parts report = __atomic_load_n(&tilegraph_set_error_parts, __ATOMIC_ACQUIRE);
  if (report) report(kind, parts, n);
}
