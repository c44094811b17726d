// ONNX Runtime's API tables, and how errors cross the C boundary: exceptions inside, OrtStatus outside.
#pragma once

#include <cstdint>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "onnxruntime_c_api.h"

static_assert(ORT_API_VERSION >= 23, "the headers of ONNX Runtime 1.23 or newer are needed: set ONNXRUNTIME_INCLUDE_DIR");

namespace tilegraph {

// A constant, whatever the headers' own version: every runtime from 1.23 on serves it.
inline constexpr uint32_t kApiVersion = 23;
inline constexpr const char* kEpName = "TileGraphExecutionProvider";

extern const OrtApi* ort;    // set once by CreateEpFactories
extern const OrtEpApi* ort_ep;

class Error : public std::runtime_error {
 public:
  Error(OrtErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  OrtErrorCode code() const { return code_; }

 private:
  OrtErrorCode code_;
};

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// A status with this message, made valid UTF-8: Python shows nothing else. ORT_EP_FAIL becomes RUNTIME_EXCEPTION, because
// Python's run() would otherwise silently build a session without this provider.
OrtStatus* new_status(OrtErrorCode code, const char* message) noexcept;

// Turns a failed status into an Error and releases it.
void raise(OrtStatus* status);
inline void check(OrtStatus* status) {
  if (status) [[unlikely]] raise(status);
}

// Runs `body`; no exception leaves it.
template <class Body>
OrtStatus* guarded(Body&& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Error& e) {
    return new_status(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return new_status(ORT_RUNTIME_EXCEPTION, "TileGraph: out of memory");
  } catch (const std::exception& e) {
    return new_status(ORT_RUNTIME_EXCEPTION, e.what());
  } catch (...) {
    return new_status(ORT_RUNTIME_EXCEPTION, "TileGraph: unknown C++ exception");
  }
}

}  // namespace tilegraph
