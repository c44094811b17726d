// The provider's options, read from a session's configuration.
#pragma once

#include <string>

#include "library.h"
#include "status.h"

namespace tilegraph {

struct Options {
  int max_tasks = 1;          // most tasks that one kernel call is split into
  size_t copied_bytes = 0;    // most bytes of weights that are copied into large pages
  Loader loader = Loader::kAuto;
  std::string context_path;   // ep.context_file_path: where a model given as bytes would lie
  std::string expect_sha256;  // what the model's folder must be, or empty
  std::string problem;        // what is wrong with them, else empty
};

// An unknown option and a bad value are kept as `problem`: an error at this stage makes Python retry without this provider.
Options read_options(const OrtSessionOptions* session);

}  // namespace tilegraph
