#include "program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "bytes.h"
#include "parallel.h"

namespace tilegraph {
namespace {

constexpr double kStreamedBytes = 300e3;  // half of what a core reads from memory in what a task takes, some 15 µs

}  // namespace

Program::Program(ProgramSpec spec, std::shared_ptr<Library> library, std::string node, int max_tasks)
    : spec_(std::move(spec)), library_(std::move(library)), node_(std::move(node)), max_tasks_(max_tasks) {
  zero_ = spec_.expressions.constant(0);
  std::map<std::string, KernelFunction> found;
  for (const KernelCall& call : spec_.calls) {
    auto [entry, added] = found.try_emplace(call.symbol, nullptr);
    if (added) entry->second = library_->find(call.symbol);
    if (!entry->second)
      throw Error(ORT_INVALID_GRAPH, cat(node_, ": the compiled library has no kernel '", call.symbol,
                                         "'; run tilegraph optimize again on the original model"));
    Call c{entry->second, call.symbol, call.name, static_cast<uint32_t>(sources_.size()), static_cast<uint32_t>(call.args.size()),
           static_cast<uint32_t>(call.sizes.size()), row_arguments_, call.extent, call.grain, call.scratch, call.align};
    for (const Slot& slot : call.args) {
      bool arena = slot.kind == Slot::Kind::kArena;
      sources_.push_back(arena ? arena_source()
                               : slot.index + (slot.kind == Slot::Kind::kOutput ? static_cast<uint32_t>(spec_.inputs.size()) : 0));
      offset_registers_.push_back(arena ? slot.offset : zero_);
      item_registers_.push_back(arena ? slot.item : zero_);
      is_arena_.push_back(arena);
    }
    row_arguments_ += static_cast<size_t>(c.count());
    calls_.push_back(std::move(c));
  }
}

void Program::refuse(const std::string& what) const { throw Error(ORT_INVALID_ARGUMENT, cat(node_, ": ", what)); }

bool Program::has_static_shape(size_t input) const {
  const auto& shape = spec_.inputs[input].shape;
  return std::all_of(shape.begin(), shape.end(), [&](Register r) { return spec_.expressions.is_constant(r); });
}

std::vector<uint32_t> Program::streamed() const {
  std::vector<int64_t> registers = spec_.expressions.registers();
  for (const auto& symbol : spec_.expressions.symbols()) registers[symbol.at] = 1;
  try {
    spec_.expressions.evaluate(registers);
  } catch (const Error&) {
    return {};  // no run has these sizes
  }
  std::vector<uint32_t> found;
  std::vector<bool> seen(spec_.inputs.size());
  for (const KernelCall& call : spec_.calls) {
    std::vector<uint32_t> read;
    double bytes = 0;
    for (const Slot& slot : call.args) {
      if (slot.kind != Slot::Kind::kInput) continue;
      const TensorSpec& input = spec_.inputs[slot.index];
      if (!input.constant || !has_static_shape(slot.index)) continue;
      auto size = static_cast<double>(dtype_bytes(input.dtype));
      for (Register dim : input.shape) size *= static_cast<double>(spec_.expressions.constant_value(dim));
      bytes += size;
      read.push_back(slot.index);
    }
    auto tasks = static_cast<double>(registers[call.extent]) / static_cast<double>(std::max<int64_t>(registers[call.grain], 1));
    if (bytes < tasks * kStreamedBytes) continue;
    for (uint32_t input : read) {
      if (!seen[input]) found.push_back(input);
      seen[input] = true;
    }
  }
  return found;
}

Plan Program::new_plan() const {
  Plan plan;
  plan.registers = spec_.expressions.registers();
  plan.offsets.resize(sources_.size());
  plan.item_bytes.resize(sources_.size());
  plan.rounds.resize(spec_.rounds.size());
  plan.steps.resize(calls_.size());
  plan.rows.resize(row_arguments_);
  return plan;
}

void Program::refuse_dim(size_t input, size_t dim, int64_t have, int64_t want, const std::string& bound_by) const {
  const TensorSpec& tensor = spec_.inputs[input];
  std::string reason;
  if (!spec_.expressions.is_constant(tensor.shape[dim]))
    reason = cat(" = ", spec_.expressions.text(tensor.shape[dim]), bound_by);
  refuse(cat("input ", input, " '", tensor.name, "' has ", have, " in dim ", dim, ", expected ", want, reason,
             "; feed inputs whose dims agree, or optimize the model for this shape"));
}

void Program::check_static(size_t input, const std::vector<int64_t>& dims) const {
  const auto& shape = spec_.inputs[input].shape;
  for (size_t d = 0; d < dims.size(); ++d)
    if (int64_t want = spec_.expressions.constant_value(shape[d]); dims[d] != want) refuse_dim(input, d, dims[d], want, "");
}

void Program::bind(Plan& plan, const std::vector<uint32_t>& checked) const {
  const Expressions& expressions = spec_.expressions;
  std::map<Register, std::pair<uint32_t, size_t>> binders;  // symbol -> input and dim that bind it
  size_t at = 0;
  for (uint32_t input : checked)
    for (size_t d = 0; d < spec_.inputs[input].shape.size(); ++d, ++at) {
      Register dim = spec_.inputs[input].shape[d];
      if (expressions.symbol_name(dim) && binders.try_emplace(dim, input, d).second) plan.registers[dim] = plan.input_dims[at];
    }
  try {
    expressions.evaluate(plan.registers);
  } catch (const Error& e) {
    refuse(e.what());
  }
  at = 0;
  for (uint32_t input : checked)
    for (size_t d = 0; d < spec_.inputs[input].shape.size(); ++d, ++at) {
      Register dim = spec_.inputs[input].shape[d];
      if (plan.registers[dim] == plan.input_dims[at]) continue;
      std::string bound_by;
      if (auto binder = binders.find(dim); binder != binders.end())
        bound_by = cat(", set by dim ", binder->second.second, " of input '", spec_.inputs[binder->second.first].name, "'");
      else
        for (const auto& symbol : expressions.symbols())
          if (expressions.mentions(dim, symbol.at)) bound_by += cat(bound_by.empty() ? " where " : ", ", symbol.name, " = ",
                                                                    plan.registers[symbol.at]);
      refuse_dim(input, d, plan.input_dims[at], plan.registers[dim], bound_by);
    }
}

void Program::check_equal(const Plan& plan) const {
  for (const auto& [a, b] : spec_.equal)
    if (int64_t x = plan.registers[a], y = plan.registers[b]; x != y)
      refuse(cat("the model joins values whose extents ", spec_.expressions.text(a), " = ", x, " and ",
                 spec_.expressions.text(b), " = ", y, " differ for these input shapes"));
}

int64_t Program::size(const Plan& plan, Register at, const char* what) const {
  int64_t value = plan.registers[at];
  if (value < 0)
    refuse(cat(what, " ", spec_.expressions.text(at), " is ", value, " for these input shapes, and cannot be negative"));
  return value;
}

void Program::plan_outputs(Plan& plan) const {
  plan.output_dims.clear();
  plan.output_bytes.clear();
  for (const TensorSpec& output : spec_.outputs) {
    size_t bytes = dtype_bytes(output.dtype);
    bool empty = false;
    for (Register dim : output.shape) {
      int64_t extent = size(plan, dim, "an output's dim");
      plan.output_dims.push_back(extent);
      if (extent == 0) empty = true;
      else bytes = multiply_bytes(bytes, static_cast<size_t>(extent));
    }
    plan.output_bytes.push_back(empty ? 0 : bytes);
  }
}

void Program::plan_calls(Plan& plan) const {
  plan.arena_bytes = round_up_bytes(static_cast<size_t>(size(plan, spec_.arena_bytes, "the arena size")));
  plan.scratch_bytes = 0;
  for (size_t i = 0; i < sources_.size(); ++i) {
    plan.offsets[i] = size(plan, offset_registers_[i], "an arena offset");
    plan.item_bytes[i] = size(plan, item_registers_[i], "the bytes of an item");
    if (is_arena_[i] && static_cast<size_t>(plan.offsets[i]) > plan.arena_bytes)
      refuse(cat("an arena offset (", plan.offsets[i], ") lies outside the arena of ", plan.arena_bytes, " bytes"));
  }
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    Plan::Step& step = plan.steps[i];
    step.extent = size(plan, call.extent, "the extent");
    step.grain = size(plan, call.grain, "the grain");
    step.tasks = step.extent ? tasks(call, step, step.extent) : 0;
    step.scratch_bytes = round_up_bytes(static_cast<size_t>(size(plan, call.scratch, "the scratch size")));
    plan.scratch_bytes = std::max(plan.scratch_bytes, multiply_bytes(step.scratch_bytes, static_cast<size_t>(std::min(step.tasks, max_tasks_))));
    TVMFFIAny* row = plan.rows.data() + call.row + call.pointers;
    set_pointer(*row++, nullptr);
    for (Register value : spec_.calls[i].sizes) set_integer(*row++, size(plan, value, "a kernel's size"));
    set_integer(*row++, 0);
    set_integer(*row, step.extent);
  }
}

void Program::plan_rounds(Plan& plan) const {
  for (size_t i = 0; i < spec_.rounds.size(); ++i) {
    const RoundsSpec& rounds = spec_.rounds[i];
    Plan::Rounds& made = plan.rounds[i];
    made.items = size(plan, rounds.items, "the number of items");
    made.step = std::max<int64_t>(size(plan, rounds.step, "the number of items of a round"), 1);
    bool empty = true;
    for (size_t k = rounds.first; k < rounds.first + rounds.calls; ++k) {
      int64_t extent = plan.steps[k].extent;
      empty = empty && extent == 0;
      if (made.items ? extent % made.items : extent)
        refuse(cat("call ", k, " has ", extent, " units for ", made.items, " items"));
      for (uint32_t p = 0; p < calls_[k].pointers; ++p)
        multiply_bytes(static_cast<size_t>(plan.item_bytes[calls_[k].first_pointer + p]), static_cast<size_t>(made.items));
    }
    if (empty) made.items = 0;
  }
}

int Program::tasks(const Call& call, const Plan::Step& step, int64_t extent) const {
  return task_count(extent, step.grain, call.align, max_tasks_);
}

void Program::make_plan(Plan& plan, const std::vector<uint32_t>& checked) const {
  plan.valid = false;
  bind(plan, checked);
  check_equal(plan);
  plan_outputs(plan);
  plan_calls(plan);
  plan_rounds(plan);
  plan.valid = true;
}

}  // namespace tilegraph
