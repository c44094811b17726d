// One EPContext node of a session: checks the inputs, gets the outputs and runs the partition's program.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "arena.h"
#include "program.h"
#include "status.h"
#include "weights.h"

namespace tilegraph {

// Where ONNX Runtime's fused node has what the EPContext node lists. ONNX Runtime passes a value that is used twice only
// once, and drops outputs that nobody reads.
struct Binding {
  static constexpr size_t kDropped = SIZE_MAX;
  std::vector<size_t> inputs;
  std::vector<size_t> outputs;       // or kDropped
  std::vector<bool> constant;        // the input is a constant initializer of the graph
  std::vector<size_t> copies;        // the number of an input's copy in `copied`, or kDropped
  std::shared_ptr<const WeightCopies> copied;  // or null
};

class Kernel : public OrtNodeComputeInfo {
 public:
  Kernel(std::unique_ptr<Program> program, Binding binding, std::shared_ptr<ArenaPool> arenas);
  ~Kernel();

 private:
  // What one run needs, kept for the next one: concurrent runs have one each.
  struct Workspace {
    Plan plan;
    std::vector<void*> bases;     // inputs, outputs, arena
    std::vector<TVMFFIAny> rows;  // arguments of calls of rounds, which a program has more of than rows
  };
  class Lease;
  class Queue;

  struct Part {
    int64_t first, end, items;  // the items that a call does, of how many
  };

  void run(OrtKernelContext* context);
  void read_inputs(const OrtKernelContext* context, Workspace& workspace);
  void read_input(const OrtKernelContext* context, uint32_t input, size_t first_dim, Workspace& workspace);
  void get_outputs(OrtKernelContext* context, Workspace& workspace, char* spill);
  void resolve_constants(const OrtKernelContext* context);
  std::unique_ptr<Workspace> new_workspace(const OrtKernelContext* context);

  std::unique_ptr<Program> program_;
  Binding binding_;
  std::shared_ptr<ArenaPool> arenas_;
  std::vector<uint32_t> checked_;    // the inputs looked at on each run
  std::vector<uint32_t> constants_;  // the others: resolved by the first run
  std::vector<void*> constant_data_; // by input
  bool drops_outputs_ = false;

  std::atomic<Workspace*> hot_{nullptr};  // taken and put back without a lock
  std::mutex mutex_;
  bool constants_resolved_ = false;
  size_t workspaces_ = 0;  // in all
  std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace tilegraph
