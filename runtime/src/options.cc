#include "options.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>

#include "parallel.h"

namespace tilegraph {
namespace {

constexpr size_t kCopiedLimit = size_t{1} << 20;  // MiB
constexpr std::string_view kPrefix = "ep.tilegraphexecutionprovider.";

int hardware_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

int read_max_tasks(std::string_view value) {
  int n = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc() || end != value.data() + value.size() || n < 1 || n > kTaskLimit)
    throw Error(ORT_INVALID_ARGUMENT, cat("option max_tasks of ", kEpName, " is '", value,
                                          "': it must be an integer from 1 to ", kTaskLimit));
  return n;
}

size_t read_copied(std::string_view value) {
  size_t megabytes = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), megabytes);
  if (error != std::errc() || end != value.data() + value.size() || megabytes > kCopiedLimit)
    throw Error(ORT_INVALID_ARGUMENT, cat("option copied_weights_mb of ", kEpName, " is '", value,
                                          "': it must be an integer from 0 to ", kCopiedLimit));
  return megabytes << 20;
}

Loader read_loader(std::string_view value) {
  if (value == "auto") return Loader::kAuto;
  if (value == "place") return Loader::kPlace;
  if (value == "memfd") return Loader::kMemory;
  if (value == "file") return Loader::kFile;
  throw Error(ORT_INVALID_ARGUMENT,
              cat("option loader of ", kEpName, " is '", value, "': it must be auto, place, memfd or file"));
}

std::string read_sha256(std::string_view value) {
  if (value.size() != 64 || value.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    throw Error(ORT_INVALID_ARGUMENT, cat("option expect_sha256 of ", kEpName, " is '", value,
                                          "': it must be the 64 lower-case hexadecimal digits that tilegraph optimize prints"));
  return std::string(value);
}

}  // namespace

Options read_options(const OrtSessionOptions* session) {
  Options options;
  // No API tells the session's thread count. Four tasks a hardware thread balance uneven ones; one costs some 10 ns.
  options.max_tasks = std::min(kTaskLimit, 4 * hardware_threads());
  OrtKeyValuePairs* pairs = nullptr;
  check(ort->GetSessionOptionsConfigEntries(session, &pairs));
  struct Release {
    OrtKeyValuePairs* pairs;
    ~Release() { ort->ReleaseKeyValuePairs(pairs); }
  } release{pairs};
  const char* const* keys = nullptr;
  const char* const* values = nullptr;
  size_t count = 0;
  ort->GetKeyValuePairs(pairs, &keys, &values, &count);
  for (size_t i = 0; i < count; ++i) {
    std::string_view key = keys[i];
    if (key == "ep.context_file_path") options.context_path = values[i];
    if (!key.starts_with(kPrefix)) continue;
    key.remove_prefix(kPrefix.size());
    try {
      if (key == "max_tasks")
        options.max_tasks = read_max_tasks(values[i]);
      else if (key == "copied_weights_mb")
        options.copied_bytes = read_copied(values[i]);
      else if (key == "loader")
        options.loader = read_loader(values[i]);
      else if (key == "expect_sha256")
        options.expect_sha256 = read_sha256(values[i]);
      else
        throw Error(ORT_INVALID_ARGUMENT,
                    cat("unknown option '", key, "' of ", kEpName,
                        "; the options are max_tasks, copied_weights_mb, loader and expect_sha256"));
    } catch (const Error& e) {
      options.problem = e.what();
    }
  }
  return options;
}

}  // namespace tilegraph
