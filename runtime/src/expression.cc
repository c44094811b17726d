#include "expression.h"

#include <algorithm>

#include "status.h"

namespace tilegraph {
namespace {

constexpr const char* kNames[] = {"+", "*", "//", "%", "min", "max"};

}  // namespace

Register Expressions::add(Kind kind, int64_t initial, size_t index) {
  initial_.push_back(initial);
  kinds_.push_back(kind);
  index_.push_back(index);
  return static_cast<Register>(initial_.size() - 1);
}

Register Expressions::constant(int64_t value) {
  auto [found, added] = constants_.try_emplace(value, 0);
  if (added) found->second = add(Kind::kConstant, value, 0);
  return found->second;
}

Register Expressions::symbol(const std::string& name) {
  auto [found, added] = by_name_.try_emplace(name, 0);
  if (added) {
    found->second = add(Kind::kSymbol, 0, symbols_.size());
    symbols_.push_back({name, found->second});
  }
  return found->second;
}

bool Expressions::define(const std::string& name, Register value) { return by_name_.try_emplace(name, value).second; }

Register Expressions::apply(Op op, Register left, Register right) {
  if (is_constant(left) && is_constant(right))
    return constant(compute({op, left, right, 0}, initial_[left], initial_[right]));
  auto [found, added] = by_operation_.try_emplace({op, left, right}, 0);
  if (added) {
    found->second = add(Kind::kOperation, 0, instructions_.size());
    instructions_.push_back({op, left, right, found->second});
  }
  return found->second;
}

const std::string* Expressions::symbol_name(Register at) const {
  return kinds_[at] == Kind::kSymbol ? &symbols_[index_[at]].name : nullptr;
}

std::string Expressions::text(Register at) const {
  constexpr size_t kLongest = 300;
  std::string whole = nested_text(at);
  if (kinds_[at] == Kind::kOperation && whole.front() == '(') whole = whole.substr(1, whole.size() - 2);
  return whole.size() > kLongest ? whole.substr(0, kLongest) + " ..." : whole;
}

std::string Expressions::nested_text(Register at) const {
  if (kinds_[at] == Kind::kConstant) return std::to_string(initial_[at]);
  if (kinds_[at] == Kind::kSymbol) return symbols_[index_[at]].name;
  const Instruction& i = instructions_[index_[at]];
  const char* name = kNames[static_cast<size_t>(i.op)];
  if (i.op == Op::kMin || i.op == Op::kMax) return cat(name, "(", nested_text(i.left), ", ", nested_text(i.right), ")");
  return cat("(", nested_text(i.left), " ", name, " ", nested_text(i.right), ")");
}

bool Expressions::mentions(Register expression, Register symbol) const {
  if (expression == symbol) return true;
  if (kinds_[expression] != Kind::kOperation) return false;
  const Instruction& i = instructions_[index_[expression]];
  return mentions(i.left, symbol) || mentions(i.right, symbol);
}

int64_t Expressions::compute(const Instruction& i, int64_t left, int64_t right) const {
  int64_t result = 0;
  bool bad = false;
  switch (i.op) {
    case Op::kAdd: bad = __builtin_add_overflow(left, right, &result); break;
    case Op::kMultiply: bad = __builtin_mul_overflow(left, right, &result); break;
    case Op::kMin: result = std::min(left, right); break;
    case Op::kMax: result = std::max(left, right); break;
    case Op::kFloorDivide:
    case Op::kModulo: {
      bad = right == 0 || (right == -1 && left == INT64_MIN);
      if (bad) break;
      int64_t quotient = left / right, remainder = left % right;
      if (remainder != 0 && (remainder < 0) != (right < 0)) --quotient, remainder += right;
      result = i.op == Op::kFloorDivide ? quotient : remainder;
      break;
    }
  }
  if (bad)
    throw Error(ORT_INVALID_ARGUMENT,
                cat("the size ", nested_text(i.left), " ", kNames[static_cast<size_t>(i.op)], " ", nested_text(i.right), " = ", left, " ",
                    kNames[static_cast<size_t>(i.op)], " ", right, right == 0 ? " divides by zero" : " overflows 64 bits"));
  return result;
}

void Expressions::evaluate(std::vector<int64_t>& registers) const {
  for (const Instruction& i : instructions_) registers[i.result] = compute(i, registers[i.left], registers[i.right]);
}

}  // namespace tilegraph
