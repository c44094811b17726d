#include "ep.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "file.h"
#include "kernel.h"
#include "program.h"

namespace tilegraph {
namespace {

std::vector<const OrtNode*> nodes_of(const OrtGraph* graph) {
  size_t count = 0;
  check(ort->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  check(ort->Graph_GetNodes(graph, nodes.data(), count));
  return nodes;
}

std::vector<const OrtValueInfo*> inputs_of(const OrtNode* node) {
  size_t count = 0;
  check(ort->Node_GetNumInputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  check(ort->Node_GetInputs(node, values.data(), count));
  return values;
}

std::vector<const OrtValueInfo*> outputs_of(const OrtNode* node) {
  size_t count = 0;
  check(ort->Node_GetNumOutputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  check(ort->Node_GetOutputs(node, values.data(), count));
  return values;
}

std::string name_of(const OrtValueInfo* value) {
  const char* name = nullptr;
  if (value) check(ort->GetValueInfoName(value, &name));
  return name ? name : "";
}

bool is_ours(const OrtNode* node) {
  const char* type = nullptr;
  const char* domain = nullptr;
  check(ort->Node_GetOperatorType(node, &type));
  check(ort->Node_GetDomain(node, &domain));
  if (std::strcmp(type, "EPContext") != 0 || std::strcmp(domain, "com.microsoft") != 0) return false;
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* status = ort->Node_GetAttributeByName(node, "source", &attribute)) {
    ort->ReleaseStatus(status);
    return false;
  }
  char source[64] = {};
  size_t length = 0;
  if (OrtStatus* status = ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, source, sizeof source - 1, &length)) {
    ort->ReleaseStatus(status);  // no attribute, not a string, or longer than our name
    return false;
  }
  return std::string_view(source, std::strlen(source)) == kEpName;
}

// Element type and rank are known when the model is loaded: say at once what would fail in every run.
void check_value(const OrtValueInfo* value, const TensorSpec& spec, const std::string& node, const char* what, size_t index) {
  const OrtTypeInfo* type = nullptr;
  check(ort->GetValueInfoTypeInfo(value, &type));
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  if (type) check(ort->CastTypeInfoToTensorInfo(type, &tensor));
  if (!tensor) throw Error(ORT_INVALID_GRAPH, cat(node, ": ", what, " ", index, " '", spec.name, "' is not a tensor"));
  ONNXTensorElementDataType dtype;
  check(ort->GetTensorElementType(tensor, &dtype));
  if (dtype != spec.dtype)
    throw Error(ORT_INVALID_GRAPH, cat(node, ": ", what, " ", index, " '", spec.name, "' holds ", dtype_name(dtype),
                                       " in the model, compiled for ", dtype_name(spec.dtype),
                                       "; run tilegraph optimize again on the original model"));
}

// Where the fused node has each of the inner node's values, by name. With a path of the model, `parts` gets what may be copied.
Binding bind(const OrtNode* inner, const OrtNode* fused, const Program& program, const std::string& model_path,
             std::vector<FilePart>& parts) {
  auto inner_inputs = inputs_of(inner), inner_outputs = outputs_of(inner);
  if (inner_inputs.size() != program.inputs().size() || inner_outputs.size() != program.outputs().size())
    throw Error(ORT_INVALID_GRAPH, cat(program.node(), ": it has ", inner_inputs.size(), " inputs and ", inner_outputs.size(),
                                       " outputs, compiled with ", program.inputs().size(), " and ",
                                       program.outputs().size(), "; run tilegraph optimize again on the original model"));
  std::map<std::string, size_t> inputs, outputs;
  auto fused_inputs = inputs_of(fused), fused_outputs = outputs_of(fused);
  for (size_t i = 0; i < fused_inputs.size(); ++i) inputs.try_emplace(name_of(fused_inputs[i]), i);
  for (size_t i = 0; i < fused_outputs.size(); ++i) outputs.try_emplace(name_of(fused_outputs[i]), i);
  Binding binding;
  for (size_t i = 0; i < inner_inputs.size(); ++i) {
    std::string name = name_of(inner_inputs[i]);
    auto found = inputs.find(name);
    if (name.empty() || found == inputs.end())
      throw Error(ORT_INVALID_GRAPH, cat(program.node(), ": input ", i, " '", program.inputs()[i].name, "' is not connected"));
    check_value(inner_inputs[i], program.inputs()[i], program.node(), "input", i);
    bool constant = false;
    // The inner node is asked: what the fused node lists never counts as an initializer.
    check(ort->ValueInfo_IsConstantInitializer(inner_inputs[i], &constant));
    binding.inputs.push_back(found->second);
    binding.constant.push_back(constant);
  }
  binding.copies.assign(inner_inputs.size(), Binding::kDropped);
  for (uint32_t i : model_path.empty() ? std::vector<uint32_t>() : program.streamed()) {
    FilePart part = binding.constant[i] ? file_part(inner_inputs[i], folder_of(model_path)) : FilePart{};
    if (!part.bytes) continue;
    binding.copies[i] = parts.size();
    parts.push_back(std::move(part));
  }
  for (size_t i = 0; i < inner_outputs.size(); ++i) {
    std::string name = name_of(inner_outputs[i]);
    auto found = name.empty() ? outputs.end() : outputs.find(name);
    if (found == outputs.end()) {
      binding.outputs.push_back(Binding::kDropped);
      continue;
    }
    check_value(inner_outputs[i], program.outputs()[i], program.node(), "output", i);
    binding.outputs.push_back(found->second);
  }
  return binding;
}

}  // namespace

Ep::Ep(const Options& options, const OrtLogger* logger)
    : OrtEp{}, options_(options), logger_(logger), artifacts_(options) {
  ort_version_supported = kApiVersion;
  GetName = [](const OrtEp*) noexcept -> const char* { return kEpName; };
  GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info) noexcept -> OrtStatus* {
    return guarded([&] { static_cast<Ep*>(self)->claim(graph, info); });
  };
  // The last argument would take new EPContext nodes; a compiled model already has its own.
  OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, size_t count,
                      OrtNodeComputeInfo** kernels, OrtNode**) noexcept -> OrtStatus* {
    return guarded([&] { static_cast<Ep*>(self)->compile(graphs, fused, count, kernels); });
  };
  ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** kernels, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) delete static_cast<Kernel*>(kernels[i]);
  };
}

void Ep::log(OrtLoggingLevel level, const std::string& message) {
  if (!logger_) return;
  if (OrtStatus* status = ort->Logger_LogMessage(logger_, level, message.c_str(), __FILE__, __LINE__, "TileGraph"))
    ort->ReleaseStatus(status);
}

void Ep::claim(const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
  for (const OrtNode* node : nodes_of(graph)) {
    if (!is_ours(node)) continue;
    OrtNodeFusionOptions options{};
    options.ort_version_supported = kApiVersion;
    options.drop_constant_initializers = false;  // weights are inputs: they stay mapped and shared
    check(ort_ep->EpGraphSupportInfo_AddNodesToFuse(info, &node, 1, &options));
  }
}

void Ep::compile(const OrtGraph** graphs, const OrtNode** fused, size_t count, OrtNodeComputeInfo** kernels) {
  if (!options_.problem.empty()) throw Error(ORT_INVALID_ARGUMENT, options_.problem);
  std::vector<ContextNode> contexts;
  std::vector<const OrtNode*> inner;
  for (size_t i = 0; i < count; ++i) {
    auto nodes = nodes_of(graphs[i]);
    if (nodes.size() != 1)
      throw Error(ORT_INVALID_GRAPH, cat("TileGraph: a graph to compile has ", nodes.size(), " nodes, expected one EPContext"));
    inner.push_back(nodes[0]);
    contexts.push_back(read_context_node(nodes[0], graphs[i]));
  }
  artifacts_.add_embedded(contexts);
  std::vector<std::unique_ptr<Program>> programs;
  std::vector<Binding> bindings;
  std::vector<FilePart> parts;
  int64_t constants = 0;
  for (size_t i = 0; i < count; ++i) {
    auto artifact = artifacts_.find(contexts[i]);
    programs.push_back(std::make_unique<Program>(artifact->manifest->program(contexts[i].partition), artifact->library,
                                                 contexts[i].node, options_.max_tasks));
    bindings.push_back(bind(inner[i], fused[i], *programs.back(), options_.copied_bytes ? contexts[i].model_path : "", parts));
    constants += std::count(bindings.back().constant.begin(), bindings.back().constant.end(), true);
  }
  auto copied = WeightCopies::of(parts, options_.copied_bytes);
  std::vector<std::unique_ptr<Kernel>> made;
  for (size_t i = 0; i < count; ++i) {
    bindings[i].copied = copied;
    made.push_back(std::make_unique<Kernel>(std::move(programs[i]), std::move(bindings[i]), arenas_));
  }
  for (size_t i = 0; i < count; ++i) kernels[i] = made[i].release();
  log(ORT_LOGGING_LEVEL_INFO, cat("TileGraph: ", count, " compiled partitions ready, with ", constants,
                                  " constant inputs (", copied ? copied->bytes() : 0,
                                  " bytes copied), split into at most ", options_.max_tasks, " tasks"));
}

}  // namespace tilegraph
