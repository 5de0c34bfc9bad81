// SPDX-License-Identifier: Apache-2.0
#pragma once
// run<&loop>(config, args...): a training from inside a program, its result in the caller's hands.
//
//     struct outcome { double accuracy = 0; std::uint64_t steps = 0; };
//     outcome loop(skein::train::context& ctx, skein::run_config config, hyper how) { ... }
//
//     int main() {
//         skein::serve_if_worker();               // ranks enter the loop here
//         auto result = skein::train::run<&loop>(config, hyper{.lr = 0.1});
//         if (!result.ok()) return complain(result.error());
//         return result.value().accuracy > 0.97 ? 0 : 1;
//     }
//
// One worker and no launcher: the loop runs here, on the calling thread. Several: ranks are
// processes of this program that enter the loop by its name, supervised and started again as
// launch() does it. Under srun, mpirun or torchrun each process is a rank, and every one gets rank
// 0's result. Arguments and result travel as a remote function's, at most 1 MiB each. A program may
// have several runs, in turn or at once on threads of its own; under a launcher in turn.

#include <skein/train/detail/run_loop.hpp>
#include <skein/train/launch.hpp>
#include <skein/train/run_result.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace skein::train {

/// Trains, and blocks until that has ended well or ill. Nothing is thrown, and no error printed:
/// what happened is in the result.
///   F       a named function (context&, arguments...) or (context&, run_config, arguments...)
///   config  where and how it runs; the loop gets a copy, and what it does with it is its own
///   args    of the loop; copied
///   result  what rank 0's loop returned, and what its last fit() left (run_result.hpp)
///   errors  in it: what the loop threw, with the rank; worker_lost: a rank was killed or called
///           exit(); too_large: arguments or result; usage: the config; not_supported: in a rank of
///           a run, in a rank of launch(), several workers in a task or an actor, several runs at
///           once under a launcher, hosts that help
///   signals SIGINT and SIGTERM ask the ranks to stop in order while it runs on the main thread and
///           nobody has taken them before; result.stopped_by says so. On other threads they stay
///           what they are
template <auto F, class... A>
[[nodiscard]] run_result<detail::loop_result<F>> run(const run_config& config, A&&... args) {
    using traits = detail::loop_signature<decltype(F)>;
    using value = detail::loop_result<F>;
    static_assert(traits::template takes<A...>(),
                  "skein: the arguments of run<&loop>(config, args...) must be those of the loop "
                  "behind its context (and run_config)");
    const auto encode = [&] {
        const typename traits::arguments all(std::forward<A>(args)...);
        return wire::encode(all);
    };
    auto ended = detail::run_loop(detail::loop_record_of<F>(), config, encode);
    if constexpr (std::is_void_v<value>) {
        return run_result<void>(std::move(ended.how));
    } else {
        std::optional<value> got;
        if (ended.how.ok()) {
            auto decoded = wire::decode<value>(ended.value);
            if (decoded)
                got.emplace(std::move(*decoded));
            else
                ended.how.failure = decoded.error();
        }
        return run_result<value>(std::move(ended.how), std::move(got));
    }
}

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/run.ipp>
#endif
