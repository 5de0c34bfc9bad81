// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which failures of a task make it run again, beside the death of its worker.
//
//     auto r = skein::remote<&fetch>.with({.retry_on = {errc::timeout, errc::reset}})(url);
//     auto s = skein::remote<&parse>.with({.retry_on = skein::thrown<std::runtime_error>()})(row);
//     auto t = skein::remote<&flaky>.with({.retry_on = skein::any_failure})(1);
//
// Retries on a death and on a failure count together (.retries). A task that is cancelled, or whose
// deadline has passed, does not run again.

#include <skein/core/error.hpp>
#include <skein/core/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>

namespace skein {

class failures;
namespace rt {
struct failure;
}
namespace detail {
constexpr failures any_of_them() noexcept;
}

/// A set of error codes and of exception types. Owns nothing.
class failures {
public:
    constexpr failures() noexcept = default; ///< none
    template <std::same_as<errc>... Codes>
        requires(sizeof...(Codes) > 0)
    constexpr failures(Codes... codes) noexcept : codes_((bit(codes) | ...)) {} // NOLINT: as a list

    /// These and further codes.
    template <std::same_as<errc>... Codes>
    [[nodiscard]] constexpr failures or_code(Codes... codes) const noexcept {
        failures out = *this;
        out.codes_ |= (bit(codes) | ...);
        return out;
    }
    [[nodiscard]] constexpr bool empty() const noexcept { return codes_ == 0 && count_ == 0; }

    /// As it travels; rt::known_failures reads it. "" is none.
    [[nodiscard]] std::string text() const;

private:
    template <class... Exceptions>
    friend constexpr failures thrown() noexcept;
    friend constexpr failures detail::any_of_them() noexcept;
    template <class... Exceptions>
    static constexpr const std::type_info* list_of[] = {&typeid(Exceptions)...};
    [[nodiscard]] static constexpr std::uint64_t bit(errc code) noexcept {
        return std::uint64_t{1} << (static_cast<unsigned>(code) & 63U);
    }

    std::uint64_t codes_ = 0;
    const std::type_info* const* types_ = nullptr;
    std::size_t count_ = 0;
};

/// Exceptions of exactly these types: the worker tells the name of what was thrown, not of its
/// bases.
template <class... Exceptions>
[[nodiscard]] constexpr failures thrown() noexcept {
    static_assert(sizeof...(Exceptions) > 0, "name the types: thrown<std::runtime_error>()");
    failures out;
    out.types_ = failures::list_of<Exceptions...>;
    out.count_ = sizeof...(Exceptions);
    return out;
}

namespace detail {
[[nodiscard]] constexpr failures any_of_them() noexcept {
    failures out;
    out.codes_ = ~failures::bit(errc::cancelled);
    return out;
}
} // namespace detail
/// All that a task may throw, but for errc::cancelled.
inline constexpr failures any_failure = detail::any_of_them();

namespace rt {

/// Failures as the driver knows them.
class known_failures {
public:
    /// From failures::text(); errc::malformed for another one.
    [[nodiscard]] static result<known_failures> parse(std::string_view text);
    [[nodiscard]] bool has(const failure& why) const;
    [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
    std::uint64_t codes_ = 0;
    std::string text_;
};

} // namespace rt
} // namespace skein

#if SKEIN_HEADER_ONLY
#include <skein/rt/detail/failures.ipp>
#endif
