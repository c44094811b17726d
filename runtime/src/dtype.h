// Element types by their ONNX names in lower case (float, float16, int64, bool, ...).
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "onnxruntime_c_api.h"

namespace tilegraph {

std::optional<ONNXTensorElementDataType> dtype_of(std::string_view name);  // nothing for an unknown name and for strings
std::string_view dtype_name(ONNXTensorElementDataType dtype);
size_t dtype_bytes(ONNXTensorElementDataType dtype);  // an upper bound of the bytes of one element

}  // namespace tilegraph
