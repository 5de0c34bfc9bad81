// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a place has and what a request asks for: cpus, gpus, memory, and resources that a program
// names itself.
//
//     auto have = sched::parse_resources(text).value(); // "cpu=8,gpu=2,memory=4GiB,ssd=1"
//     sched::resources need;
//     need.cpu = sched::amount::from(0.5);
//     if (sched::fits(need, have)) have -= need;
//
// Amounts are whole numbers of 1/10000, so that ten times 0.1 is 1 and what was taken can be given
// back exactly; memory is in bytes. Nothing here depends on a machine: what a host has is measured
// elsewhere.

#include <skein/core/config.hpp>
#include <skein/core/result.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace skein::sched {

/// A number of cpus, gpus or units of a custom resource, in steps of 1/10000. Never negative in
/// resources; differences may be.
class amount {
public:
    static constexpr std::int64_t steps = 10'000; ///< steps in one
    static constexpr std::int64_t most =
        1'000'000'000; ///< what parse and from() take at most, in ones

    constexpr amount() noexcept = default;
    /// A whole number.
    constexpr amount(int n) noexcept : raw_(steps * n) {}
    /// Would lose its fraction: amount::from(0.5).
    amount(double) = delete;
    amount(float) = delete;
    /// In steps of 1/10000.
    [[nodiscard]] static constexpr amount of_steps(std::int64_t n) noexcept {
        amount a;
        a.raw_ = n;
        return a;
    }
    /// The nearest step. Throws error (invalid_argument) for what is negative, no number, more than
    /// `most`, or not zero and nearer to zero than to one step.
    [[nodiscard]] static amount from(double n);

    [[nodiscard]] constexpr std::int64_t in_steps() const noexcept { return raw_; }
    [[nodiscard]] constexpr bool is_whole() const noexcept { return raw_ % steps == 0; }
    constexpr explicit operator bool() const noexcept { return raw_ != 0; }

    constexpr amount& operator+=(amount b) noexcept {
        raw_ += b.raw_;
        return *this;
    }
    constexpr amount& operator-=(amount b) noexcept {
        raw_ -= b.raw_;
        return *this;
    }
    friend constexpr amount operator+(amount a, amount b) noexcept { return a += b; }
    friend constexpr amount operator-(amount a, amount b) noexcept { return a -= b; }
    friend constexpr auto operator<=>(amount, amount) noexcept = default;

private:
    std::int64_t raw_ = 0;
};

/// A resource that is only a name and a number, such as licences: ssd=1.
struct custom_resource {
    std::string name{}; ///< a letter, then letters, digits, '_', '-', '.'; at most 64
    amount value{};
    friend auto operator<=>(const custom_resource&, const custom_resource&) = default;
};

/// A name that begins with a dot is of who keeps the books: nobody can write it, to_string() leaves
/// it out, and texts about it say what stands behind the dot.
[[nodiscard]] constexpr bool is_inner_resource(std::string_view name) noexcept {
    return name.starts_with('.') && name.size() > 1;
}

/// Bounds of what is parsed, so that text from outside cannot take much.
struct resource_limits {
    std::size_t text = 4096;                       ///< bytes
    std::size_t custom = 32;                       ///< custom resources
    std::uint64_t memory = std::uint64_t{1} << 50; ///< bytes: 1 PiB
};

/// Amounts of several resources. What is not named is zero.
struct resources {
    amount cpu{}, gpu{};
    std::uint64_t memory = 0;              ///< bytes
    std::vector<custom_resource> custom{}; ///< in the order of their names, none twice, none zero

    /// The amount of a custom resource.
    [[nodiscard]] amount of(std::string_view name) const noexcept;
    /// Sets a custom resource; zero removes it. Throws error (invalid_argument) for a name that is
    /// none.
    resources& set(std::string_view name, amount value);
    [[nodiscard]] bool empty() const noexcept {
        return !cpu && !gpu && memory == 0 && custom.empty();
    }

    resources& operator+=(const resources& more);
    /// `less` must fit in this.
    resources& operator-=(const resources& less);

    friend bool operator==(const resources&, const resources&) = default;
    /// An order for keys of maps; fits() says whether one is enough for the other.
    friend auto operator<=>(const resources&, const resources&) = default;
};

/// True if no amount of `need` is larger than that of `have`.
[[nodiscard]] bool fits(const resources& need, const resources& have) noexcept;

/// The cores that so much cpu is counted as: rounded up.
[[nodiscard]] constexpr std::uint32_t whole_cores(amount cpu) noexcept {
    return static_cast<std::uint32_t>((cpu.in_steps() + amount::steps - 1) / amount::steps);
}

/// Reads "cpu=2,gpu=0.5,memory=4GiB,ssd=1". Memory takes B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, or
/// bytes; at most four decimals; bytes are rounded up. An error says which part is wrong and how to
/// write it.
[[nodiscard]] result<resources> parse_resources(std::string_view text,
                                                const resource_limits& limits = {});

/// What parse_resources() reads: "cpu=2,gpu=0.5,memory=4GiB,ssd=1"; without anything "".
[[nodiscard]] std::string to_string(const resources& r);
/// "0.5"
[[nodiscard]] std::string to_string(amount a);

/// Whether this can be asked for: more than one gpu must be a whole number, for a share of a gpu
/// lies on one gpu.
[[nodiscard]] result<void> check_demand(const resources& need);
/// Whether a place can have this: its gpus are whole, and at most 64.
[[nodiscard]] result<void> check_total(const resources& total);

/// Gpus of one host by their index there, at most 64.
class gpu_set {
public:
    static constexpr int most = 64;

    constexpr gpu_set() noexcept = default;
    constexpr explicit gpu_set(std::uint64_t bits) noexcept : bits_(bits) {}

    [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
    [[nodiscard]] constexpr bool has(int index) const noexcept { return (bits_ >> index & 1) != 0; }
    constexpr void insert(int index) noexcept { bits_ |= std::uint64_t{1} << index; }
    [[nodiscard]] constexpr bool empty() const noexcept { return bits_ == 0; }
    friend constexpr bool operator==(gpu_set, gpu_set) noexcept = default;

private:
    std::uint64_t bits_ = 0;
};
/// "0,3": what a variable such as CUDA_VISIBLE_DEVICES takes.
[[nodiscard]] std::string to_string(gpu_set gpus);

} // namespace skein::sched

#if SKEIN_HEADER_ONLY
#include <skein/sched/detail/resources.ipp>
#endif
