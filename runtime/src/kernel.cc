#include "kernel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "bytes.h"
#include "parallel.h"

namespace tilegraph {
namespace {

// The shape information of a value, released at the end.
class Shape {
 public:
  explicit Shape(const OrtValue* value) { check(ort->GetTensorTypeAndShape(value, &info_)); }
  ~Shape() { ort->ReleaseTensorTypeAndShapeInfo(info_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;

  ONNXTensorElementDataType dtype() const {
    ONNXTensorElementDataType dtype;
    check(ort->GetTensorElementType(info_, &dtype));
    return dtype;
  }
  size_t rank() const {
    size_t rank;
    check(ort->GetDimensionsCount(info_, &rank));
    return rank;
  }
  void dims(int64_t* out, size_t rank) const { check(ort->GetDimensions(info_, out, rank)); }

 private:
  OrtTensorTypeAndShapeInfo* info_ = nullptr;
};

const OrtValue* input_value(const OrtKernelContext* context, size_t index, const Program& program, size_t input) {
  const OrtValue* value = nullptr;
  check(ort->KernelContext_GetInput(context, index, &value));
  if (!value) program.refuse(cat("input ", input, " '", program.inputs()[input].name, "' is missing"));
  return value;
}

void* data_of(const OrtValue* value) {
  void* data = nullptr;
  check(ort->GetTensorMutableData(const_cast<OrtValue*>(value), &data));  // the API has no const form; kernels only read
  return data;
}

void check_type(const Program& program, size_t input, const Shape& shape, size_t rank) {
  const TensorSpec& spec = program.inputs()[input];
  if (shape.dtype() != spec.dtype)
    program.refuse(cat("input ", input, " '", spec.name, "' holds ", dtype_name(shape.dtype()), ", compiled for ",
                       dtype_name(spec.dtype)));
  if (rank != spec.shape.size())
    program.refuse(cat("input ", input, " '", spec.name, "' has ", rank, " dims, compiled for ", spec.shape.size()));
}

}  // namespace

// A workspace for the time of one run.
class Kernel::Lease {
 public:
  Lease(Kernel& kernel, const OrtKernelContext* context) : kernel_(kernel) {
    workspace_.reset(kernel.hot_.exchange(nullptr, std::memory_order_acquire));
    if (workspace_) return;
    {
      std::lock_guard lock(kernel.mutex_);
      if (!kernel.idle_.empty()) {
        workspace_ = std::move(kernel.idle_.back());
        kernel.idle_.pop_back();
        return;
      }
    }
    workspace_ = kernel.new_workspace(context);
  }
  ~Lease() {
    Workspace* expected = nullptr;
    if (kernel_.hot_.compare_exchange_strong(expected, workspace_.get(), std::memory_order_release, std::memory_order_relaxed)) {
      workspace_.release();
      return;
    }
    std::lock_guard lock(kernel_.mutex_);
    kernel_.idle_.push_back(std::move(workspace_));  // new_workspace has made room
  }
  Workspace& operator*() { return *workspace_; }

 private:
  Kernel& kernel_;
  std::unique_ptr<Workspace> workspace_;
};

Kernel::Kernel(std::unique_ptr<Program> program, Binding binding, std::shared_ptr<ArenaPool> arenas)
    : OrtNodeComputeInfo{}, program_(std::move(program)), binding_(std::move(binding)), arenas_(std::move(arenas)) {
  ort_version_supported = kApiVersion;
  CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) noexcept -> OrtStatus* {
    *state = self;
    return nullptr;
  };
  ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) noexcept -> OrtStatus* {
    return guarded([&] {
      auto kernel = static_cast<Kernel*>(self);
      try {
        kernel->run(context);
      } catch (const std::bad_alloc&) {
        throw Error(ORT_RUNTIME_EXCEPTION, cat(kernel->program_->node(), ": not enough memory for its intermediates with "
                                               "these input shapes; feed smaller inputs or run fewer at once"));
      }
    });
  };
  for (uint32_t i = 0; i < program_->inputs().size(); ++i) {
    bool once = program_->inputs()[i].constant && binding_.constant[i] && program_->has_static_shape(i);
    (once ? constants_ : checked_).push_back(i);
  }
  drops_outputs_ = std::count(binding_.outputs.begin(), binding_.outputs.end(), Binding::kDropped) > 0;
}

Kernel::~Kernel() { delete hot_.load(); }

// Weights stay where they are for as long as the session lives, so one look is enough.
void Kernel::resolve_constants(const OrtKernelContext* context) {
  if (constants_resolved_) return;
  constant_data_.assign(program_->inputs().size(), nullptr);
  std::vector<int64_t> dims;
  for (uint32_t input : constants_) {
    const OrtValue* value = input_value(context, binding_.inputs[input], *program_, input);
    Shape shape(value);
    size_t rank = shape.rank();
    check_type(*program_, input, shape, rank);
    dims.resize(rank);
    shape.dims(dims.data(), rank);
    program_->check_static(input, dims);
    constant_data_[input] = data_of(value);
    if (!binding_.copied || binding_.copies[input] == Binding::kDropped) continue;
    // The same bytes in larger pages; kernels only read.
    const char* copy = binding_.copied->find(binding_.copies[input], static_cast<const char*>(constant_data_[input]));
    if (copy) constant_data_[input] = const_cast<char*>(copy);
  }
  constants_resolved_ = true;
}

std::unique_ptr<Kernel::Workspace> Kernel::new_workspace(const OrtKernelContext* context) {
  auto workspace = std::make_unique<Workspace>();
  workspace->plan = program_->new_plan();
  size_t dims = 0;
  for (uint32_t input : checked_) dims += program_->inputs()[input].shape.size();
  workspace->plan.input_dims.resize(dims, -1);
  workspace->bases.resize(program_->arena_source() + 1);
  std::lock_guard lock(mutex_);
  resolve_constants(context);
  std::copy(constant_data_.begin(), constant_data_.end(), workspace->bases.begin());
  idle_.reserve(++workspaces_);
  return workspace;
}

void Kernel::read_input(const OrtKernelContext* context, uint32_t input, size_t first_dim, Workspace& workspace) {
  const OrtValue* value = input_value(context, binding_.inputs[input], *program_, input);
  Shape shape(value);
  size_t rank = shape.rank();
  check_type(*program_, input, shape, rank);
  int64_t dims[kMaxRank];
  shape.dims(dims, rank);
  int64_t* known = workspace.plan.input_dims.data() + first_dim;
  if (rank && std::memcmp(known, dims, rank * sizeof(int64_t)) != 0) {
    std::memcpy(known, dims, rank * sizeof(int64_t));
    workspace.plan.valid = false;
  }
  workspace.bases[input] = data_of(value);
}

void Kernel::read_inputs(const OrtKernelContext* context, Workspace& workspace) {
  size_t first_dim = 0;
  for (uint32_t input : checked_) {
    read_input(context, input, first_dim, workspace);
    first_dim += program_->inputs()[input].shape.size();
  }
  if (!workspace.plan.valid) program_->make_plan(workspace.plan, checked_);
}

// Memory for the outputs; those that nobody reads lie in `spill`.
void Kernel::get_outputs(OrtKernelContext* context, Workspace& workspace, char* spill) {
  static constexpr int64_t kNoDims[1] = {0};
  const int64_t* dims = workspace.plan.output_dims.data();
  if (!dims) dims = kNoDims;
  void** base = workspace.bases.data() + program_->inputs().size();
  for (size_t i = 0; i < binding_.outputs.size(); ++i) {
    size_t rank = program_->outputs()[i].shape.size();
    if (binding_.outputs[i] == Binding::kDropped) {
      base[i] = workspace.plan.output_bytes[i] ? spill : nullptr;
      spill += round_up_bytes(workspace.plan.output_bytes[i]);
    } else {
      OrtValue* value = nullptr;
      check(ort->KernelContext_GetOutput(context, binding_.outputs[i], dims, rank, &value));
      if (!value) program_->refuse(cat("output ", i, " '", program_->outputs()[i].name, "' cannot be allocated"));
      base[i] = data_of(value);
    }
    dims += rank;
  }
}

// The calls of a run, given to the pool many at a time.
class Kernel::Queue {
 public:
  Queue(const Kernel& kernel, const OrtKernelContext* context, Workspace& workspace, char* scratch)
      : program_(*kernel.program_), context_(context), workspace_(workspace), scratch_(scratch) {}

  void add(size_t number, Part part) {
    Plan& plan = workspace_.plan;
    const Program::Call& call = program_.calls()[number];
    const Plan::Step& step = plan.steps[number];
    if (step.extent == 0) return;
    int64_t item = step.extent / part.items, first = part.first * item, end = part.end * item;
    bool whole = end - first == step.extent;
    auto count = static_cast<size_t>(call.count());
    TVMFFIAny* row = plan.rows.data() + call.row;
    if (!whole) {  // other rounds are in the queue, too
      auto& rows = workspace_.rows;
      if (waiting_ == kCalls || used_ + count > rows.size()) run();
      if (rows.size() < count) rows.resize(kCalls * count);
      row = std::copy_n(plan.rows.data() + call.row, count, rows.data() + used_) - count;
      used_ += count;
    } else if (waiting_ == kCalls) {
      run();
    }
    const uint32_t* sources = program_.sources().data() + call.first_pointer;
    for (uint32_t k = 0; k < call.pointers; ++k) {
      auto base = reinterpret_cast<uintptr_t>(workspace_.bases[sources[k]]);
      // As a number: the items before this round, which are not there any more, may have begun in front of the arena.
      auto shift = plan.offsets[call.first_pointer + k] - part.first * plan.item_bytes[call.first_pointer + k];
      set_pointer(row[k], base ? reinterpret_cast<void*>(base + static_cast<uintptr_t>(shift)) : nullptr);
    }
    int tasks = whole ? step.tasks : program_.tasks(call, step, end - first);
    launches_[waiting_] = {call.function, row, call.count(), static_cast<int32_t>(call.pointers), first, end, call.align,
                           tasks, step.scratch_bytes ? scratch_ : nullptr, step.scratch_bytes};
    numbers_[waiting_++] = number;
  }

  void run() {
    size_t count = std::exchange(waiting_, 0);
    used_ = 0;
    try {
      launch(context_, launches_, count, program_.max_tasks());
    } catch (const Failed& e) {
      const Program::Call& call = program_.calls()[numbers_[e.number]];
      throw Error(ORT_RUNTIME_EXCEPTION, cat(program_.node(), ": ", call.name.empty() ? "kernel" : "node", " '",
                                             call.name.empty() ? call.symbol : call.name, "' failed: ", e.message));
    }
  }

 private:
  static constexpr size_t kCalls = 64;
  const Program& program_;
  const OrtKernelContext* context_;
  Workspace& workspace_;
  char* scratch_;
  Launch launches_[kCalls];
  size_t numbers_[kCalls];
  size_t waiting_ = 0, used_ = 0;  // calls, and arguments in workspace_.rows
};

void Kernel::run(OrtKernelContext* context) {
  Lease lease(*this, context);
  Workspace& workspace = *lease;
  read_inputs(context, workspace);
  Plan& plan = workspace.plan;

  size_t spilled = 0;
  if (drops_outputs_)
    for (size_t i = 0; i < binding_.outputs.size(); ++i)
      if (binding_.outputs[i] == Binding::kDropped) spilled = add_bytes(spilled, round_up_bytes(plan.output_bytes[i]));
  ArenaPool::Lease arena = arenas_->acquire(add_bytes(add_bytes(plan.arena_bytes, plan.scratch_bytes), spilled));
  char* memory = arena.data();
  char* scratch = plan.scratch_bytes ? memory + plan.arena_bytes : nullptr;
  get_outputs(context, workspace, spilled ? memory + plan.arena_bytes + plan.scratch_bytes : nullptr);
  workspace.bases[program_->arena_source()] = plan.arena_bytes ? memory : nullptr;

  Queue queue(*this, context, workspace, scratch);
  size_t i = 0;
  for (size_t r = 0; r < program_->rounds().size(); ++r) {
    const RoundsSpec& rounds = program_->rounds()[r];
    for (; i < rounds.first; ++i) queue.add(i, {0, 1, 1});
    auto [items, step] = plan.rounds[r];
    for (int64_t n = 0, end; n < items; n = end) {
      end = n + std::min(step, items - n);
      for (size_t k = 0; k < rounds.calls; ++k) queue.add(i + k, {n, end, items});
    }
    i += rounds.calls;
  }
  for (; i < program_->calls().size(); ++i) queue.add(i, {0, 1, 1});
  queue.run();
}

}  // namespace tilegraph
