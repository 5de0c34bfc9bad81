// SPDX-License-Identifier: Apache-2.0
#pragma once
// Libraries that are looked for while the program runs: nothing of them is needed to build it.
//
// A table of functions stands for such a library (cuda_runtime.hpp, nccl.hpp). Its entries are
// filled by dlopen, or by a model of the library, and callers cannot tell which.
//
//     const auto found = shared_library::find({"libnccl.so.2"});
//     void* const version = found.value().symbol("ncclGetVersion");

#include <skein/core/result.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace skein::dist {

/// Gives the address of a function by its name; null when there is none.
using symbol_finder = std::function<void*(const char*)>;

/// A library of this process. It stays loaded: libraries of devices have threads of their own.
class shared_library {
public:
    /// The first of the names that is loaded already, else the first that can be loaded.
    ///   names   as dlopen takes them: "libnccl.so.2", or a path
    ///   errors  not_found: the names that were tried, and what the system said of each
    [[nodiscard]] static result<shared_library> find(const std::vector<std::string>& names);

    /// Some part of this process has it. Nothing is loaded.
    [[nodiscard]] static bool is_loaded(const std::string& name) noexcept;

    /// Null when the library has no such function.
    [[nodiscard]] void* symbol(const char* name) const noexcept;
    /// The file it came from, or the name it was found by.
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    /// Somebody else had loaded it before.
    [[nodiscard]] bool was_loaded() const noexcept { return was_loaded_; }

private:
    shared_library(void* handle, std::string path, bool was_loaded)
        : handle_(handle), path_(std::move(path)), was_loaded_(was_loaded) {}

    void* handle_;
    std::string path_;
    bool was_loaded_;
};

namespace detail {

template <class Result, class... Args>
void bind_symbol(std::function<Result(Args...)>& entry, void* address) {
    if (address != nullptr) entry = reinterpret_cast<Result (*)(Args...)>(address);
}

} // namespace detail

/// Fills every entry of a table. Gives the names of those that were not found.
///   Table  has a function each(table, visitor), which calls visitor(symbol, entry) for each
template <class Table>
[[nodiscard]] std::vector<std::string> fill_table(Table& table, const symbol_finder& find) {
    std::vector<std::string> missing;
    Table::each(table, [&](const char* symbol, auto& entry) {
        void* const address = find(symbol);
        detail::bind_symbol(entry, address);
        if (address == nullptr) missing.emplace_back(symbol);
    });
    return missing;
}

} // namespace skein::dist

#if SKEIN_HEADER_ONLY
#include <skein/dist/detail/library.ipp>
#endif
