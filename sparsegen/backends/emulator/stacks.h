// The stacks of a block's fibers: one mapping, a guard page below each stack.
#pragma once

#include <cstddef>
#include <span>

namespace sparsegen::emulator {

class Stacks {
public:
    explicit Stacks(std::size_t count);
    ~Stacks();
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;

    std::span<std::byte> operator[](std::size_t number) const;

private:
    std::size_t guard_bytes_;
    std::size_t total_bytes_;
    std::byte* memory_;
};

}  // namespace sparsegen::emulator
