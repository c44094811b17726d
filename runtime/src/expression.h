// Integer expressions over a program's symbols, evaluated together: each distinct one has one register.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace tilegraph {

using Register = uint32_t;

// Python's meaning: `//` rounds down and `%` has the divisor's sign.
enum class Op : uint8_t { kAdd, kMultiply, kFloorDivide, kModulo, kMin, kMax };

class Expressions {
 public:
  struct Symbol {
    std::string name;
    Register at;
  };

  // Building. Constants are folded and equal expressions share a register. `apply` throws INVALID_ARGUMENT if a
  // constant operation overflows or divides by zero.
  Register constant(int64_t value);
  Register symbol(const std::string& name);
  bool define(const std::string& name, Register value);  // a name for an expression; false if it has a meaning already
  Register apply(Op op, Register left, Register right);

  // Queries.
  const std::vector<Symbol>& symbols() const { return symbols_; }
  const std::string* symbol_name(Register at) const;  // null if it is not a symbol
  bool is_constant(Register at) const { return kinds_[at] == Kind::kConstant; }
  int64_t constant_value(Register at) const { return initial_[at]; }
  std::string text(Register at) const;  // as a person writes it
  bool mentions(Register expression, Register symbol) const;

  // A register file with the constants in place; fill the symbols' registers, then `evaluate` the rest.
  std::vector<int64_t> registers() const { return initial_; }
  // Throws INVALID_ARGUMENT, naming the expression, if an operation overflows 64 bits or divides by zero.
  void evaluate(std::vector<int64_t>& registers) const;

 private:
  enum class Kind : uint8_t { kConstant, kSymbol, kOperation };
  struct Instruction {
    Op op;
    Register left, right, result;
  };

  Register add(Kind kind, int64_t initial, size_t index);
  std::string nested_text(Register at) const;
  void write(Register at, std::string& out) const;
  int64_t compute(const Instruction& instruction, int64_t left, int64_t right) const;

  std::vector<int64_t> initial_;
  std::vector<Kind> kinds_;
  std::vector<size_t> index_;  // of the symbol or the instruction
  std::vector<Symbol> symbols_;
  std::vector<Instruction> instructions_;
  std::map<int64_t, Register> constants_;
  std::map<std::string, Register> by_name_;
  std::map<std::tuple<Op, Register, Register>, Register> by_operation_;
};

}  // namespace tilegraph
