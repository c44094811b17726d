#include "fake_ort.h"

#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace {

constexpr size_t kThreads = 3;  // that a parallel loop uses, the caller's included

OrtStatus* wrong(const char* what) noexcept { return new OrtStatus{ORT_FAIL, what}; }

// Tasks are taken one by one from a counter, as in ONNX Runtime's pool. Threads are started for every loop: slow, and
// every thread boundary is one that the sanitizer sees.
OrtStatus* parallel_for(const OrtKernelContext*, void (*fn)(void*, size_t), size_t total, size_t, void* data) noexcept {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t at; (at = next.fetch_add(1, std::memory_order_relaxed)) < total;) fn(data, at);
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(kThreads, total); ++i) helpers.emplace_back(work);
  work();
  for (std::thread& helper : helpers) helper.join();
  return nullptr;
}

OrtStatus* read_attribute(const OrtOpAttr* attribute, OrtOpAttrType type, void* data, size_t room, size_t* used) noexcept {
  if (attribute->type != type) return wrong("another type of attribute");
  *used = type == ORT_OP_ATTR_INT ? sizeof(int64_t) : attribute->text.size();
  if (room < *used) return wrong("no room for the attribute");
  if (type == ORT_OP_ATTR_INT) std::memcpy(data, &attribute->number, sizeof(int64_t));
  else std::memcpy(data, attribute->text.data(), *used);
  return nullptr;
}

OrtStatus* attribute_by_name(const OrtNode* node, const char* name, const OrtOpAttr** out) noexcept {
  auto found = node->attributes.find(name);
  *out = found == node->attributes.end() ? nullptr : &found->second;
  return *out ? nullptr : wrong("no such attribute");
}

OrtStatus* output(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank, OrtValue** out) noexcept {
  OrtValue& value = context->outputs.at(index);
  value.dims.assign(dims, dims + rank);
  value.data.resize(static_cast<size_t>(std::accumulate(dims, dims + rank, int64_t{1}, std::multiplies<>())));
  *out = &value;
  return nullptr;
}

template <class T>
OrtStatus* copy_all(const std::vector<T>& from, T* to, size_t room) noexcept {
  if (room < from.size()) return wrong("no room");
  std::copy(from.begin(), from.end(), to);
  return nullptr;
}

OrtStatus* claim(OrtEpGraphSupportInfo* info, const OrtNode* const* nodes, size_t count, const OrtNodeFusionOptions*) noexcept {
  info->claimed.insert(info->claimed.end(), nodes, nodes + count);
  return nullptr;
}

OrtEpApi ep_api() {
  OrtEpApi api{};
  api.EpGraphSupportInfo_AddNodesToFuse = claim;
  return api;
}

OrtApi c_api() {
  OrtApi api{};
  api.CreateStatus = [](OrtErrorCode code, const char* message) noexcept { return new OrtStatus{code, message}; };
  api.GetErrorCode = [](const OrtStatus* status) noexcept { return status->code; };
  api.GetErrorMessage = [](const OrtStatus* status) noexcept { return status->message.c_str(); };
  api.ReleaseStatus = [](OrtStatus* status) { delete status; };
  api.GetEpApi = []() -> const OrtEpApi* {
    static const OrtEpApi table = ep_api();
    return &table;
  };
  // Graphs.
  api.Graph_GetModelPath = [](const OrtGraph* graph, const char** path) noexcept -> OrtStatus* {
    *path = graph->path.c_str();
    return nullptr;
  };
  api.Graph_GetNumNodes = [](const OrtGraph* graph, size_t* count) noexcept -> OrtStatus* {
    *count = graph->nodes.size();
    return nullptr;
  };
  api.Graph_GetNodes = [](const OrtGraph* graph, const OrtNode** nodes, size_t room) noexcept { return copy_all(graph->nodes, nodes, room); };
  api.Node_GetName = [](const OrtNode* node, const char** name) noexcept -> OrtStatus* {
    *name = node->name.c_str();
    return nullptr;
  };
  api.Node_GetOperatorType = [](const OrtNode* node, const char** type) noexcept -> OrtStatus* {
    *type = node->op_type.c_str();
    return nullptr;
  };
  api.Node_GetDomain = [](const OrtNode* node, const char** domain) noexcept -> OrtStatus* {
    *domain = node->domain.c_str();
    return nullptr;
  };
  api.Node_GetNumInputs = [](const OrtNode* node, size_t* count) noexcept -> OrtStatus* {
    *count = node->inputs.size();
    return nullptr;
  };
  api.Node_GetNumOutputs = [](const OrtNode* node, size_t* count) noexcept -> OrtStatus* {
    *count = node->outputs.size();
    return nullptr;
  };
  api.Node_GetInputs = [](const OrtNode* node, const OrtValueInfo** out, size_t room) noexcept { return copy_all(node->inputs, out, room); };
  api.Node_GetOutputs = [](const OrtNode* node, const OrtValueInfo** out, size_t room) noexcept { return copy_all(node->outputs, out, room); };
  api.Node_GetAttributeByName = attribute_by_name;
  api.ReadOpAttr = read_attribute;
  api.GetValueInfoName = [](const OrtValueInfo* value, const char** name) noexcept -> OrtStatus* {
    *name = value->name.c_str();
    return nullptr;
  };
  api.GetValueInfoTypeInfo = [](const OrtValueInfo* value, const OrtTypeInfo** type) noexcept -> OrtStatus* {
    *type = &value->type;
    return nullptr;
  };
  api.ValueInfo_IsConstantInitializer = [](const OrtValueInfo* value, bool* constant) noexcept -> OrtStatus* {
    *constant = value->constant;
    return nullptr;
  };
  api.CastTypeInfoToTensorInfo = [](const OrtTypeInfo* type, const OrtTensorTypeAndShapeInfo** tensor) noexcept -> OrtStatus* {
    *tensor = &type->tensor;
    return nullptr;
  };
  // Values.
  api.GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) noexcept -> OrtStatus* {
    *out = new OrtTensorTypeAndShapeInfo{value->dtype, value->dims};
    return nullptr;
  };
  api.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) { delete info; };
  api.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType* dtype) noexcept -> OrtStatus* {
    *dtype = info->dtype;
    return nullptr;
  };
  api.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* rank) noexcept -> OrtStatus* {
    *rank = info->dims.size();
    return nullptr;
  };
  api.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t room) noexcept { return copy_all(info->dims, dims, room); };
  api.GetTensorMutableData = [](OrtValue* value, void** data) noexcept -> OrtStatus* {
    *data = value->data.data();
    return nullptr;
  };
  // Options, runs, logs.
  api.GetSessionOptionsConfigEntries = [](const OrtSessionOptions* options, OrtKeyValuePairs** out) noexcept -> OrtStatus* {
    *out = new OrtKeyValuePairs;
    for (const std::string& key : options->keys) (*out)->keys.push_back(key.c_str());
    for (const std::string& value : options->values) (*out)->values.push_back(value.c_str());
    return nullptr;
  };
  api.GetKeyValuePairs = [](const OrtKeyValuePairs* pairs, const char* const** keys, const char* const** values, size_t* count) {
    *keys = pairs->keys.data();
    *values = pairs->values.data();
    *count = pairs->keys.size();
  };
  api.ReleaseKeyValuePairs = [](OrtKeyValuePairs* pairs) { delete pairs; };
  api.KernelContext_GetInput = [](const OrtKernelContext* context, size_t index, const OrtValue** out) noexcept -> OrtStatus* {
    *out = context->inputs.at(index);
    return nullptr;
  };
  api.KernelContext_GetOutput = output;
  api.KernelContext_ParallelFor = parallel_for;
  return api;
}

}  // namespace

const OrtApiBase* fake_ort() {
  static const OrtApi table = c_api();
  static const OrtApiBase base{[](uint32_t) noexcept -> const OrtApi* { return &table; },
                               []() noexcept -> const char* { return "1.23.0-fake"; }};
  return &base;
}
