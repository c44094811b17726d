// Many threads on a few sessions of the provider, over the fake of ONNX Runtime: built and run with the thread sanitizer.
//
//   race FOLDER ATTRIBUTES SECONDS
//
// FOLDER holds model.onnx (never read here) and what its nodes name; ATTRIBUTES is a file of lines NAME<tab>TEXT for the
// two nodes: first "product" (y = x * w over [n, 8], then + 1, in tasks with scratch), then "picky" (fails where its first
// element is negative, else + 1). Sessions are opened and closed all the while. Prints the runs; the exit code is 1 for a
// wrong answer.
#include <onnxruntime_c_api.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>

#include "fake_ort.h"

extern "C" OrtStatus* CreateEpFactories(const char*, const OrtApiBase*, const OrtLogger*, OrtEpFactory**, size_t, size_t*) noexcept;
extern "C" OrtStatus* ReleaseEpFactory(OrtEpFactory*) noexcept;

namespace {

constexpr int64_t kWidth = 8;
std::atomic<bool> failed{false};

void fail(const std::string& what) {
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  failed = true;
}

void check(OrtStatus* status) {
  if (!status) return;
  std::fprintf(stderr, "error %d: %s\n", status->code, status->message.c_str());
  std::exit(2);
}

OrtValueInfo tensor(const std::string& name, std::vector<int64_t> dims, bool constant = false) {
  return {name, {{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, std::move(dims)}}, constant};
}

// One session: two nodes, each compiled as a graph of its own.
class Session {
 public:
  Session(OrtEpFactory* factory, const std::string& folder, const std::vector<std::map<std::string, std::string>>& nodes)
      : factory_(factory) {
    options_.keys = {"ep.tilegraphexecutionprovider.max_tasks"};
    options_.values = {"7"};
    check(factory_->CreateEp(factory_, nullptr, nullptr, 0, &options_, nullptr, &ep_));
    for (size_t i = 0; i < nodes.size(); ++i) {
      OrtNode& node = nodes_[i];
      node.name = "node" + std::to_string(i);
      node.op_type = "EPContext";
      node.domain = "com.microsoft";
      for (const auto& [key, text] : nodes[i]) node.attributes[key] = {ORT_OP_ATTR_STRING, text};
      node.attributes["embed_mode"] = {ORT_OP_ATTR_INT, "", 0};
      node.attributes["main_context"] = {ORT_OP_ATTR_INT, "", 1};
      node.inputs = i == 0 ? std::vector<const OrtValueInfo*>{&x_, &w_} : std::vector<const OrtValueInfo*>{&x_};
      node.outputs = {&y_};
      graphs_[i] = {folder + "/model.onnx", {&node}};
    }
    OrtEpGraphSupportInfo support;
    OrtGraph whole{graphs_[0].path, {&nodes_[0], &nodes_[1]}};
    check(ep_->GetCapability(ep_, &whole, &support));
    if (support.claimed.size() != 2) fail("the provider does not claim its nodes");
    const OrtGraph* graphs[] = {&graphs_[0], &graphs_[1]};
    const OrtNode* fused[] = {&nodes_[0], &nodes_[1]};
    check(ep_->Compile(ep_, graphs, fused, 2, kernels_, nullptr));
    for (OrtNodeComputeInfo* kernel : kernels_) {
      void* state = nullptr;
      check(kernel->CreateState(kernel, nullptr, &state));
      states_.push_back(state);
    }
    weights_.dims = {kWidth};
    for (int64_t i = 0; i < kWidth; ++i) weights_.data.push_back(static_cast<float>(i));
  }
  ~Session() {
    for (size_t i = 0; i < 2; ++i) kernels_[i]->ReleaseState(kernels_[i], states_[i]);
    ep_->ReleaseNodeComputeInfos(ep_, kernels_, 2);
    factory_->ReleaseEp(factory_, ep_);
  }

  void product(int64_t rows, float start) {
    OrtValue x{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {rows, kWidth}, std::vector<float>(static_cast<size_t>(rows * kWidth), start)};
    OrtKernelContext context{{&x, &weights_}, std::vector<OrtValue>(1)};
    check(kernels_[0]->Compute(kernels_[0], states_[0], &context));
    for (size_t i = 0; i < x.data.size(); ++i)
      if (context.outputs[0].data[i] != start * static_cast<float>(i % kWidth) + 1) return fail("a wrong product");
  }
  void picky(int64_t rows, bool bad) {
    OrtValue x{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {rows, kWidth}, std::vector<float>(static_cast<size_t>(rows * kWidth), 2)};
    if (bad) x.data[0] = -1;
    OrtKernelContext context{{&x}, std::vector<OrtValue>(1)};
    std::unique_ptr<OrtStatus> status(kernels_[1]->Compute(kernels_[1], states_[1], &context));
    if (bad != (status != nullptr)) return fail(status ? status->message : "a kernel's error was lost");
    if (status && status->message.find("ValueError: negative") == std::string::npos) return fail(status->message);
    if (!bad && context.outputs[0].data[0] != 3) fail("a wrong sum");
  }
  void narrow() {
    OrtValue x{ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, {2, 3}, std::vector<float>(6)};
    OrtKernelContext context{{&x}, std::vector<OrtValue>(1)};
    std::unique_ptr<OrtStatus> status(kernels_[1]->Compute(kernels_[1], states_[1], &context));
    if (!status || status->code != ORT_INVALID_ARGUMENT) fail("a shape that does not fit was accepted");
  }

 private:
  OrtEpFactory* factory_;
  OrtEp* ep_ = nullptr;
  OrtSessionOptions options_;
  OrtValueInfo x_ = tensor("x", {-1, kWidth}), w_ = tensor("w", {kWidth}, true), y_ = tensor("y", {-1, kWidth});
  OrtNode nodes_[2];
  OrtGraph graphs_[2];
  OrtNodeComputeInfo* kernels_[2] = {};
  std::vector<void*> states_;
  OrtValue weights_;
};

std::vector<std::map<std::string, std::string>> read_attributes(const char* path) {
  std::vector<std::map<std::string, std::string>> nodes(2);
  std::ifstream file(path);
  std::string line;
  for (size_t at = 0; std::getline(file, line);) {
    size_t tab = line.find('\t');
    if (tab == std::string::npos) { at = 1; continue; }  // an empty line: the second node
    nodes[at][line.substr(0, tab)] = line.substr(tab + 1);
  }
  return nodes;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  std::string folder = argv[1];
  auto nodes = read_attributes(argv[2]);
  auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(argv[3]));
  OrtEpFactory* factory = nullptr;
  size_t count = 0;
  check(CreateEpFactories("race", fake_ort(), nullptr, &factory, 1, &count));
  std::atomic<int64_t> runs{0};
  {
    std::vector<std::unique_ptr<Session>> sessions;
    for (int i = 0; i < 4; ++i) sessions.push_back(std::make_unique<Session>(factory, folder, nodes));
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 8; ++seed)
      threads.emplace_back([&, seed] {
        std::minstd_rand choose(seed + 1);
        while (!failed && std::chrono::steady_clock::now() < until) {
          Session& session = *sessions[choose() % sessions.size()];
          int64_t rows = static_cast<int64_t>(choose() % 40);
          switch (choose() % 8) {
            case 0: session.picky(rows + 1, choose() % 2); break;
            case 1: session.narrow(); break;
            case 2: Session(factory, folder, nodes).product(rows, 3); break;
            default: session.product(rows, static_cast<float>(choose() % 100));
          }
          ++runs;
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  check(ReleaseEpFactory(factory));
  std::printf("%lld runs\n", static_cast<long long>(runs.load()));
  return failed ? 1 : 0;
}
