// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which functions of this program can be called from another process, and under which number.
//
// A function names itself: remote<&f> puts its record into the registry before main runs, in the
// driver as in the worker, because both are the same binary. The key is the 64-bit hash of its
// mangled name, the signature hash covers the types of arguments and result. At first use the
// records are sorted by key and numbered 0, 1, 2...; calls carry that dense index. The hash over
// the whole table is compared when two processes meet, so equal indices mean equal functions.

#include <skein/core/fnv.hpp>
#include <skein/core/result.hpp>
#include <skein/rt/detail/signature.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace skein::rt {

namespace detail {
struct incoming_call;

/// FNV-1a with a final mix; stable across compilers and processes.
[[nodiscard]] constexpr std::uint64_t hash_text(std::string_view text) noexcept {
    fnv1a hash;
    hash.text(text);
    std::uint64_t h = hash.value();
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15;
    return h ^ (h >> 29);
}
[[nodiscard]] constexpr std::uint64_t hash_mix(std::uint64_t h, std::uint64_t value) noexcept {
    h ^= value + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
    return h * 0xff51afd7ed558ccd;
}
} // namespace detail

/// One callable of this program. Lives for ever; made by detail::record<...>.
struct function_record {
    const char* mangled = nullptr; ///< typeid name: unique per function
    const char* shown = nullptr;   ///< typeid name that the readable name comes from
    bool is_constructor = false;
    const std::type_info* actor = nullptr; ///< of a method or constructor: whose
    bool is_coroutine = false;             ///< starts from the run queue, in order
    bool is_stream = false;                ///< gives items, see rt/stream.hpp
    bool reads_views = false;              ///< there is a view of an object in its arguments
    bool gives_views = false;              ///< the same in its result
    std::uint16_t group = 0;               ///< of a method: see group_number()
    std::string_view group_name;
    void (*invoke)(detail::incoming_call&) = nullptr; ///< decodes, calls, replies
    std::uint64_t (*signature_hash)() = nullptr;
    std::string (*signature_text)() = nullptr;

    // Filled in by the registry.
    std::uint64_t key = 0, signature = 0;
    std::uint32_t index = 0;
    std::string name; ///< "app::score(app::row, float)"
    function_record* next = nullptr;
};

/// The sorted, numbered records of this program.
class registry {
public:
    /// The program's registry; built at first use. Aborts if two functions cannot be told apart.
    [[nodiscard]] static const registry& instance();

    /// Called before main for every remote function of the program.
    static void add(function_record& record);

    /// Sorts and numbers records.
    ///   errors  already_exists: two functions of one name in different files; mismatch: two names
    ///           with the same hash
    [[nodiscard]] static result<registry> build(std::vector<function_record*> records);

    [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }
    /// nullptr if there is no such index.
    [[nodiscard]] const function_record* at(std::uint32_t index) const noexcept {
        return index < records_.size() ? records_[index] : nullptr;
    }
    /// Over all keys and signatures; equal in two processes that can call each other.
    [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

private:
    /// "app::f(int)" for a function, "app::counter(int)" for a constructor.
    static std::string function_name(const function_record& r);

    static inline constinit function_record* first_ = nullptr;
    static inline constinit bool built_ = false;

    std::vector<function_record*> records_;
    std::uint64_t hash_ = 0x736b65696e;
};

} // namespace skein::rt

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/registry.ipp>
#endif
