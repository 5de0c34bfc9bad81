// SPDX-License-Identifier: Apache-2.0
#pragma once
// The templates behind train/run.hpp: what a loop's signature says, its record, and how it is
// called. All that does not depend on the loop is in detail/run.ipp.

#include <skein/core/bytes.hpp>
#include <skein/spmd/rank_entry.hpp>
#include <skein/train/context.hpp>
#include <skein/train/detail/value_text.hpp>
#include <skein/train/run_config.hpp>
#include <skein/train/run_result.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace skein::train::detail {

/// Of a loop's arguments together, and of its result.
inline constexpr std::size_t most_loop_bytes = std::size_t{1} << 20;

/// What a loop has returned.
struct loop_value {
    byte_buffer bytes; ///< wire-encoded
    std::string text;  ///< as JSON, where it can be
};

/// One loop of this program. Lives for ever.
struct loop_record : spmd::rank_entry {
    loop_value (*call)(context& ctx, const run_config& config, byte_span arguments) = nullptr;
};

/// How run() ended.
struct loop_end {
    finished_run how;
    byte_buffer value; ///< when how.ok()
};

/// `encode` makes the arguments' bytes; what it throws is the run's failure.
[[nodiscard]] loop_end run_loop(loop_record& loop, const run_config& config,
                                const std::function<byte_buffer()>& encode);
/// The life of a supervised rank of a loop; gives the exit code.
[[nodiscard]] int live_in_loop(spmd::rank_entry& entry);

template <class P>
consteval bool check_loop_parameter() {
    using value = std::remove_cvref_t<P>;
    static_assert(!std::is_pointer_v<value>,
                  "skein: the loop of a run cannot take a pointer: it may run in another process; "
                  "take the value");
    static_assert(!std::is_lvalue_reference_v<P> || std::is_const_v<std::remove_reference_t<P>>,
                  "skein: the loop of a run cannot take a non-const reference: the caller's object "
                  "may be in another process; take the value and return the result");
    static_assert(std::is_pointer_v<value> || wire::encodable<value>,
                  "skein: an argument of the loop of a run cannot be sent: make it a plain "
                  "aggregate of types that can (no base class; std::array, not a C array), or "
                  "specialise skein::wire::codec for it");
    return true;
}

template <class R>
consteval bool check_loop_result() {
    if constexpr (!std::is_void_v<R>) {
        static_assert(!std::is_pointer_v<R> && !std::is_reference_v<R>,
                      "skein: the loop of a run cannot return a pointer or a reference: it may run "
                      "in another process; return the value");
        static_assert(wire::encodable<R>,
                      "skein: the result of the loop of a run cannot be sent: make it a plain "
                      "aggregate of types that can (no base class; std::array, not a C array), or "
                      "specialise skein::wire::codec for it");
    }
    return true;
}

template <bool Config, class R, class... P>
struct loop_traits {
    using result = R;
    using arguments = std::tuple<std::remove_cvref_t<P>...>;
    static constexpr bool takes_config = Config;
    static_assert((true && ... && check_loop_parameter<P>()));
    static_assert(check_loop_result<R>());

    template <class... A>
    static consteval bool takes() {
        return std::is_constructible_v<arguments, A&&...>;
    }
};

/// Says what a loop looks like.
template <class F>
struct loop_signature {
    static_assert(sizeof(F) == 0, "skein: run<&loop> needs a named function: R loop(context& ctx, "
                                  "arguments...) or R loop(context& ctx, run_config config, "
                                  "arguments...)");
};
template <class R, class... P>
struct loop_signature<R (*)(context&, P...)> : loop_traits<false, R, P...> {};
template <class R, class... P>
struct loop_signature<R (*)(context&, run_config, P...)> : loop_traits<true, R, P...> {};
template <class R, class... P>
struct loop_signature<R (*)(context&, const run_config&, P...)> : loop_traits<true, R, P...> {};
template <class R, class... P>
struct loop_signature<R (*)(context&, P...) noexcept> : loop_signature<R (*)(context&, P...)> {};

template <auto F>
using loop_result = typename loop_signature<decltype(F)>::result;

/// Decodes, calls, encodes.
template <auto F>
loop_value call_loop(context& ctx, const run_config& config, byte_span bytes) {
    using traits = loop_signature<decltype(F)>;
    auto arguments = wire::decode<typename traits::arguments>(bytes).value();
    const auto call = [&]() -> typename traits::result {
        return std::apply(
            [&](auto&... each) -> typename traits::result {
                if constexpr (traits::takes_config)
                    return F(ctx, config, std::move(each)...);
                else
                    return F(ctx, std::move(each)...);
            },
            arguments);
    };
    loop_value out;
    if constexpr (std::is_void_v<typename traits::result>) {
        call();
    } else {
        const auto value = call();
        if (!ctx.is_first()) return out; // rank 0's is the run's
        out.bytes = wire::encode(value);
        out.text = value_text(value);
    }
    return out;
}

template <auto F>
struct loop_name {};

template <auto F>
struct loop_registration {
    static loop_record& record() {
        static loop_record made = [] {
            loop_record r;
            r.mangled = typeid(loop_name<F>).name();
            r.live = &live_in_loop;
            r.call = &call_loop<F>;
            return r;
        }();
        return made;
    }
    static inline const bool registered = (spmd::add_entry(record()), true);
};

/// Using it puts the loop into the list before main runs.
template <auto F>
loop_record& loop_record_of() {
    (void)&loop_registration<F>::registered;
    return loop_registration<F>::record();
}

} // namespace skein::train::detail
