// As much of ONNX Runtime's C API as the provider calls, for a build with the thread sanitizer: ONNX Runtime itself is not
// instrumented, so every value that crosses from one of its threads to another would look like a race, or hide one.
#pragma once

#include <onnxruntime_c_api.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};
struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType dtype;
  std::vector<int64_t> dims;
};
struct OrtTypeInfo {
  OrtTensorTypeAndShapeInfo tensor;
};
struct OrtValue {
  ONNXTensorElementDataType dtype = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  std::vector<int64_t> dims;
  std::vector<float> data;
};
struct OrtValueInfo {
  std::string name;
  OrtTypeInfo type;
  bool constant = false;
};
struct OrtOpAttr {
  OrtOpAttrType type;
  std::string text;
  int64_t number = 0;
};
struct OrtNode {
  std::string name, op_type, domain;
  std::map<std::string, OrtOpAttr> attributes;
  std::vector<const OrtValueInfo*> inputs, outputs;
};
struct OrtGraph {
  std::string path;
  std::vector<const OrtNode*> nodes;
};
struct OrtKeyValuePairs {
  std::vector<const char*> keys, values;
};
struct OrtSessionOptions {
  std::vector<std::string> keys, values;
};
struct OrtKernelContext {
  std::vector<const OrtValue*> inputs;
  std::vector<OrtValue> outputs;
};
struct OrtEpGraphSupportInfo {
  std::vector<const OrtNode*> claimed;
};
struct OrtHardwareDevice {};

// The table that the provider is given.
const OrtApiBase* fake_ort();
