// The provider's options, read from a session's configuration.
#pragma once

#include <string>

#include "library.h"
#include "status.h"

namespace tilegraph {

struct Options {
  int max_tasks = 1;          // most tasks that one kernel call is split into
  Loader loader = Loader::kAuto;
  std::string context_path;   // ep.context_file_path: where a model given as bytes would lie
};

// Throws INVALID_ARGUMENT for an option that does not exist or has a bad value.
Options read_options(const OrtSessionOptions* session);

}  // namespace tilegraph
