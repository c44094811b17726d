// Serves a tilegraph folder through ONNX Runtime's C API: no Python, no TVM. docs/serving.md explains it.
//
//   serve PLUGIN.so MODEL.onnx NAME=FILE:DIM,DIM,... [...]
//
// Each input is a file of raw elements; its element type is the model's. Every output is written to OUTPUT.raw in the
// working folder, and its name and dims are printed.
#include <onnxruntime_c_api.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

const OrtApi* api = nullptr;
constexpr const char* kProvider = "TileGraphExecutionProvider";

void check(OrtStatus* status) {
  if (!status) return;
  std::fprintf(stderr, "error %d: %s\n", api->GetErrorCode(status), api->GetErrorMessage(status));
  std::exit(1);
}

[[noreturn]] void fail(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  std::exit(2);
}

struct Input {
  std::string name;
  std::vector<char> bytes;
  std::vector<int64_t> dims;
};

Input read_input(const std::string& argument) {
  size_t equals = argument.find('='), colon = argument.rfind(':');
  if (equals == std::string::npos || colon == std::string::npos || colon < equals) fail("expected NAME=FILE:DIMS, got " + argument);
  Input input;
  input.name = argument.substr(0, equals);
  std::string path = argument.substr(equals + 1, colon - equals - 1);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail("cannot read " + path);
  input.bytes.assign(std::istreambuf_iterator<char>(file), {});
  for (size_t at = colon + 1; at < argument.size();) {
    size_t comma = argument.find(',', at);
    input.dims.push_back(std::stoll(argument.substr(at, comma - at)));
    at = comma == std::string::npos ? argument.size() : comma + 1;
  }
  return input;
}

// The plugin's devices: the session runs on them, and on ONNX Runtime's own CPU provider for the rest.
void use_tilegraph(OrtEnv* env, OrtSessionOptions* options, const char* plugin) {
  check(api->RegisterExecutionProviderLibrary(env, kProvider, plugin));
  const OrtEpDevice* const* devices = nullptr;
  size_t count = 0;
  check(api->GetEpDevices(env, &devices, &count));
  std::vector<const OrtEpDevice*> ours;
  for (size_t i = 0; i < count; ++i)
    if (std::string(api->EpDevice_EpName(devices[i])) == kProvider) ours.push_back(devices[i]);
  if (ours.empty()) fail("the plugin offers no device");
  check(api->SessionOptionsAppendExecutionProvider_V2(options, env, ours.data(), ours.size(), nullptr, nullptr, 0));
}

ONNXTensorElementDataType element_type(OrtSession* session, OrtAllocator* allocator, const std::string& wanted) {
  size_t count = 0;
  check(api->SessionGetInputCount(session, &count));
  for (size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    check(api->SessionGetInputName(session, i, allocator, &name));
    bool found = wanted == name;
    check(api->AllocatorFree(allocator, name));
    if (!found) continue;
    OrtTypeInfo* type = nullptr;
    check(api->SessionGetInputTypeInfo(session, i, &type));
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    check(api->CastTypeInfoToTensorInfo(type, &tensor));
    ONNXTensorElementDataType element;
    check(api->GetTensorElementType(tensor, &element));
    api->ReleaseTypeInfo(type);
    return element;
  }
  fail("the model has no input " + wanted);
}

void write_output(OrtValue* value, const std::string& name) {
  OrtTensorTypeAndShapeInfo* shape = nullptr;
  check(api->GetTensorTypeAndShape(value, &shape));
  size_t rank = 0, bytes = 0;
  check(api->GetDimensionsCount(shape, &rank));
  std::vector<int64_t> dims(rank);
  check(api->GetDimensions(shape, dims.data(), rank));
  api->ReleaseTensorTypeAndShapeInfo(shape);
  void* data = nullptr;
  check(api->GetTensorMutableData(value, &data));
  check(api->GetTensorSizeInBytes(value, &bytes));
  std::ofstream(name + ".raw", std::ios::binary).write(static_cast<char*>(data), static_cast<std::streamsize>(bytes));
  std::printf("%s", name.c_str());
  for (int64_t d : dims) std::printf(" %lld", static_cast<long long>(d));
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) fail("usage: serve PLUGIN.so MODEL.onnx NAME=FILE:DIM,DIM,... [...]");
  api = OrtGetApiBase()->GetApi(23);  // plugin providers need ONNX Runtime 1.23
  if (!api) fail(std::string("ONNX Runtime ") + OrtGetApiBase()->GetVersionString() + " is older than 1.23");

  OrtEnv* env = nullptr;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "serve", &env));
  OrtSessionOptions* options = nullptr;
  check(api->CreateSessionOptions(&options));
  use_tilegraph(env, options, argv[1]);
  OrtSession* session = nullptr;
  check(api->CreateSession(env, argv[2], options, &session));
  OrtAllocator* allocator = nullptr;
  check(api->GetAllocatorWithDefaultOptions(&allocator));

  std::vector<Input> inputs;
  for (int i = 3; i < argc; ++i) inputs.push_back(read_input(argv[i]));
  OrtMemoryInfo* memory = nullptr;
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  std::vector<const char*> names;
  std::vector<OrtValue*> values;
  for (Input& input : inputs) {
    OrtValue* value = nullptr;
    check(api->CreateTensorWithDataAsOrtValue(memory, input.bytes.data(), input.bytes.size(), input.dims.data(),
                                              input.dims.size(), element_type(session, allocator, input.name), &value));
    names.push_back(input.name.c_str());
    values.push_back(value);
  }

  size_t count = 0;
  check(api->SessionGetOutputCount(session, &count));
  std::vector<char*> output_names(count);
  for (size_t i = 0; i < count; ++i) check(api->SessionGetOutputName(session, i, allocator, &output_names[i]));
  std::vector<OrtValue*> outputs(count, nullptr);
  check(api->Run(session, nullptr, names.data(), values.data(), values.size(), output_names.data(), count, outputs.data()));

  for (size_t i = 0; i < count; ++i) {
    write_output(outputs[i], output_names[i]);
    api->ReleaseValue(outputs[i]);
    check(api->AllocatorFree(allocator, output_names[i]));
  }
  for (OrtValue* value : values) api->ReleaseValue(value);
  api->ReleaseMemoryInfo(memory);
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  check(api->UnregisterExecutionProviderLibrary(env, kProvider));
  api->ReleaseEnv(env);
  return 0;
}
