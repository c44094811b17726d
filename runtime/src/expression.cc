#include "expression.h"

#include <algorithm>

#include "status.h"

namespace tilegraph {
namespace {

constexpr const char* kNames[] = {"+", "*", "//", "%", "min", "max"};
constexpr size_t kLongest = 300;  // characters of an expression in a message

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
  std::string whole = nested_text(at);
  if (kinds_[at] != Kind::kOperation || whole.front() != '(') return whole;
  return whole.substr(1, whole.size() - (whole.back() == ')' ? 2 : 1));  // a long one has lost its end
}

std::string Expressions::nested_text(Register at) const {
  std::string whole;
  write(at, whole);
  return whole.size() > kLongest ? whole.substr(0, kLongest) + " ..." : whole;
}

// Stops behind kLongest: expressions share parts, so that a short file can hold one of any length and depth.
void Expressions::write(Register at, std::string& out) const {
  if (out.size() > kLongest) return;
  if (kinds_[at] == Kind::kConstant) {
    out += std::to_string(initial_[at]);
  } else if (kinds_[at] == Kind::kSymbol) {
    out += symbols_[index_[at]].name;
  } else {
    const Instruction& i = instructions_[index_[at]];
    const char* name = kNames[static_cast<size_t>(i.op)];
    bool call = i.op == Op::kMin || i.op == Op::kMax;
    out += call ? cat(name, "(") : "(";
    write(i.left, out);
    out += call ? ", " : cat(" ", name, " ");
    write(i.right, out);
    out += ")";
  }
}

bool Expressions::mentions(Register expression, Register symbol) const {
  std::vector<bool> part(expression + size_t{1});
  part[expression] = true;
  for (Register at = expression + 1; at-- > symbol;) {  // operands have lower registers than what is made of them
    if (!part[at] || kinds_[at] != Kind::kOperation) continue;
    const Instruction& i = instructions_[index_[at]];
    part[i.left] = part[i.right] = true;
  }
  return symbol <= expression && part[symbol];
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
