#include "dtype.h"

namespace tilegraph {
namespace {

struct Row {
  std::string_view name;
  ONNXTensorElementDataType dtype;
  size_t bytes;
};

constexpr Row kRows[] = {
    {"float", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
    {"uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},
    {"int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
    {"uint16", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 2},
    {"int16", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2},
    {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
    {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
    {"double", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"uint32", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4},
    {"uint64", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 8},
    {"complex64", ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64, 8},
    {"complex128", ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128, 16},
    {"bfloat16", ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, 2},
    {"float8e4m3fn", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN, 1},
    {"float8e4m3fnuz", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ, 1},
    {"float8e5m2", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2, 1},
    {"float8e5m2fnuz", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ, 1},
    {"uint4", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4, 1},  // two to a byte: one each is room enough
    {"int4", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, 1},
};

}  // namespace

std::optional<ONNXTensorElementDataType> dtype_of(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

std::string_view dtype_name(ONNXTensorElementDataType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.name;
  return "an element type that is not supported";
}

size_t dtype_bytes(ONNXTensorElementDataType dtype) {
  for (const Row& row : kRows)
    if (row.dtype == dtype) return row.bytes;
  return 0;
}

}  // namespace tilegraph
