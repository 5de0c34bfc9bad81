// SPDX-License-Identifier: Apache-2.0
#pragma once
// The texts among the options of calls and actors, and how options are kept.
//
//     auto f = skein::remote<&score>.with({.resources = fmt::format("{}=1", disk)});
//     auto r = f(row);                                     // the texts of f are its own
//
// A struct of options borrows its texts and is trivially destructible, so that braces in an
// expression with co_await are safe on g++ 12; .with() copies them once, for all calls that follow.

#include <skein/core/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace skein {

/// A text in a struct of options: what a string_view is, but that braces do not make one of a
/// pointer and a number. It borrows: what it was made of stays until the options are given to
/// .with() or to what takes them.
class option_text {
public:
    constexpr option_text() noexcept = default;
    template <class Text>
        requires(std::convertible_to<const Text&, std::string_view> &&
                 !std::same_as<std::nullptr_t, Text> && !std::same_as<option_text, Text>)
    constexpr option_text(const Text& text SKEIN_LIFETIMEBOUND) noexcept // NOLINT: as a text
        : text_(text) {}
    template <class First, class Second, class... More>
    constexpr option_text(First&&, Second&&, More&&...) noexcept {
        static_assert(std::is_void_v<First>,
                      "skein: an option takes one text, not a list in braces: .resources = "
                      "\"ssd=1,licence=2\", .env = \"A=1\\nB=2\"");
    }

    [[nodiscard]] constexpr std::string_view view() const noexcept { return text_; }
    constexpr operator std::string_view() const noexcept { return text_; } // NOLINT: as a text
    [[nodiscard]] constexpr std::size_t size() const noexcept { return text_.size(); }
    [[nodiscard]] constexpr bool empty() const noexcept { return text_.empty(); }

private:
    std::string_view text_;
};

namespace rt::detail {

/// Options as .with() keeps them: their texts are in memory of their own, which copies share.
template <class Options>
class owned_options {
public:
    owned_options() = default;
    explicit owned_options(const Options& given) : how_(given) {
        std::size_t bytes = 0;
        each_text(how_, [&](const option_text& text) { bytes += text.size(); });
        if (bytes == 0) return;
        auto all = std::make_shared<std::string>();
        all->reserve(bytes); // views of what is there stay valid
        each_text(how_, [&](option_text& text) {
            const auto begin = all->size();
            all->append(text.view());
            text = std::string_view(*all).substr(begin);
        });
        texts_ = std::move(all);
    }
    [[nodiscard]] const Options& operator*() const noexcept { return how_; }
    [[nodiscard]] const Options* operator->() const noexcept { return &how_; }

private:
    template <class Do>
    static void each_text(Options& of, Do what) {
        what(of.resources);
        what(of.env);
        what(of.cwd);
        what(of.name);
        if constexpr (requires { of.space; }) what(of.space);
    }
    Options how_;
    std::shared_ptr<const std::string> texts_;
};

/// The options where none were given.
template <class Options>
struct default_options {
    static constexpr Options how{};
    [[nodiscard]] constexpr const Options& operator*() const noexcept { return how; }
};

} // namespace rt::detail
} // namespace skein
