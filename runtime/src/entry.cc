// The two symbols that ONNX Runtime looks up in a plugin library.

#include "factory.h"
#include "status.h"

#define TILEGRAPH_EXPORT extern "C" __attribute__((visibility("default")))

TILEGRAPH_EXPORT OrtStatus* CreateEpFactories(const char* /*registration_name*/, const OrtApiBase* base,
                                              const OrtLogger* /*default_logger*/, OrtEpFactory** factories,
                                              size_t max_factories, size_t* num_factories) noexcept {
  const OrtApi* api = base->GetApi(tilegraph::kApiVersion);
  if (!api) {
    // No table of our version: the oldest one can still carry the message.
    const OrtApi* oldest = base->GetApi(1);
    return oldest ? oldest->CreateStatus(ORT_NOT_IMPLEMENTED,
                                         "TileGraphExecutionProvider needs ONNX Runtime 1.23 or newer: update it")
                  : nullptr;
  }
  tilegraph::ort = api;
  return tilegraph::guarded([&] {
    tilegraph::ort_ep = api->GetEpApi();
    if (max_factories < 1) throw tilegraph::Error(ORT_INVALID_ARGUMENT, "no room for one provider factory");
    factories[0] = new tilegraph::Factory;
    *num_factories = 1;
  });
}

TILEGRAPH_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) noexcept {
  delete static_cast<tilegraph::Factory*>(factory);
  return nullptr;
}
