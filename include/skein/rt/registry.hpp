// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which functions of this program can be called from another process, and under which number.
//
// A function names itself: remote<&f> puts its record into the registry before main runs, in the
// driver as in the worker, because both are the same binary. The key is the 64-bit hash of its mangled
// name, the signature hash covers the types of arguments and result. At first use the records are
// sorted by key and numbered 0, 1, 2...; calls carry that dense index. The hash over the whole table
// is compared when two processes meet, so equal indices mean equal functions.

#include <skein/core/check.hpp>
#include <skein/core/error.hpp>
#include <skein/core/fnv.hpp>
#include <skein/core/result.hpp>
#include <skein/rt/detail/signature.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include <cxxabi.h>

#include <fmt/format.h>

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
    bool is_coroutine = false;                        ///< starts from the run queue, in order
    void (*invoke)(detail::incoming_call&) = nullptr; ///< decodes, calls, replies
    std::uint64_t (*signature_hash)() = nullptr;
    std::string (*signature_text)() = nullptr;

    // Filled in by the registry.
    std::uint64_t key = 0, signature = 0;
    std::uint32_t index = 0;
    std::string name; ///< "app::score(app::row, float)"
    function_record* next = nullptr;
};

/// A compiler's name for a type, readable: "std::out_of_range".
[[nodiscard]] inline std::string readable_name(const char* mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> text(
        abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
    return status == 0 ? std::string(text.get()) : std::string(mangled);
}

/// The sorted, numbered records of this program.
class registry {
public:
    /// The program's registry; built at first use. Aborts if two functions cannot be told apart.
    [[nodiscard]] static const registry& instance() {
        static const registry built = [] {
            std::vector<function_record*> all;
            for (auto* r = first_; r != nullptr; r = r->next) all.push_back(r);
            built_ = true;
            auto made = build(std::move(all));
            SKEIN_CHECK(made, "{}", made.error().what());
            return std::move(*made);
        }();
        return built;
    }

    /// Called before main for every remote function of the program.
    static void add(function_record& record) {
        SKEIN_CHECK(!built_,
                    "remote function {} comes from a library that was loaded after the runtime "
                    "started; link it into the program",
                    readable_name(record.mangled));
        record.next = first_;
        first_ = &record;
    }

    /// Sorts and numbers records.
    ///   errors  already_exists: two functions of one name in different files; mismatch: two names
    ///           with the same hash
    [[nodiscard]] static result<registry> build(std::vector<function_record*> records) {
        registry made;
        for (auto* r : records) {
            r->key = detail::hash_text(r->mangled);
            r->name = function_name(*r);
            r->signature = r->signature_hash();
        }
        std::sort(records.begin(), records.end(), [](auto* a, auto* b) { return a->key < b->key; });
        for (std::size_t i = 0; i < records.size(); ++i) {
            auto& r = *records[i];
            r.index = static_cast<std::uint32_t>(i);
            made.hash_ = detail::hash_mix(detail::hash_mix(made.hash_, r.key), r.signature);
            if (i == 0 || records[i - 1]->key != r.key) continue;
            const auto& other = *records[i - 1];
            if (std::string_view(other.mangled) == r.mangled)
                return error(errc::already_exists,
                             fmt::format("two remote functions are both called {}", r.name))
                    .with_hint(
                        "functions in anonymous namespaces or static ones of different files "
                        "share one name: give one of them another name or a namespace");
            return error(errc::mismatch,
                         fmt::format("the names of remote functions {} and {} have the "
                                     "same hash",
                                     other.name, r.name))
                .with_hint("rename one of them");
        }
        made.records_ = std::move(records);
        return made;
    }

    [[nodiscard]] std::size_t size() const noexcept { return records_.size(); }
    /// nullptr if there is no such index.
    [[nodiscard]] const function_record* at(std::uint32_t index) const noexcept {
        return index < records_.size() ? records_[index] : nullptr;
    }
    /// Over all keys and signatures; equal in two processes that can call each other.
    [[nodiscard]] std::uint64_t hash() const noexcept { return hash_; }

private:
    /// "app::f(int)" for a function, "app::counter(int)" for a constructor.
    static std::string function_name(const function_record& r) {
        const std::string mangled = r.shown != nullptr ? r.shown : r.mangled;
        // A tag<&app::f> has the mangled name of app::f inside, which tells its parameters too.
        const auto inner = mangled.find("XadL_Z");
        if (inner != std::string::npos && mangled.ends_with("EEEE")) {
            const auto name = mangled.substr(inner + 4, mangled.size() - inner - 8);
            const auto text = readable_name(name.c_str());
            if (text != name) return text;
        }
        auto text = readable_name(mangled.c_str());
        const auto open = text.find('<');
        if (open == std::string::npos || text.back() != '>') return text;
        text = text.substr(open + 1, text.size() - open - 2);
        if (!r.is_constructor) return text;
        int depth = 0; // the first comma outside of template arguments ends the class
        for (std::size_t i = 0; i < text.size(); ++i) {
            depth += text[i] == '<' ? 1 : text[i] == '>' ? -1 : 0;
            if (text[i] == ',' && depth == 0)
                return text.substr(0, i) + "(" + text.substr(i + 2) + ")";
        }
        return text + "()";
    }

    static inline constinit function_record* first_ = nullptr;
    static inline constinit bool built_ = false;

    std::vector<function_record*> records_;
    std::uint64_t hash_ = 0x736b65696e;
};

} // namespace skein::rt
