// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a broken link took along: calls that run again, go on elsewhere or fail, and actors. Part of
// detail/runtime_peers.ipp.

#include <skein/rt/detail/runtime_state.hpp>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein::rt {

namespace detail {

/// What a worker took along, to be told in the error of each call among it.
class loss_report {
public:
    static constexpr const char* runs_again = "runs again";

    void add(const char* state, std::string name) {
        ++lost_[{state, std::move(name)}];
        ++total_;
    }
    /// "; lost with it: f(int) x2 (may have run), g() (did not run)": all but one call of that
    /// name.
    [[nodiscard]] const std::string& others(const char* state, const std::string& name) {
        constexpr std::size_t shown = 8;
        const key self(state, name);
        auto [at, is_new] = told_.try_emplace(self);
        if (!is_new) return at->second;
        std::size_t listed = 0, left_out = total_ - 1;
        for (const auto& [other, all] : lost_) {
            const std::size_t n = all - (other == self ? 1 : 0);
            if (n == 0) continue;
            if (listed == shown) break; // of thousands, each would look at all others
            left_out -= n;
            at->second +=
                fmt::format("{}{}{} ({})", listed++ == 0 ? "; lost with it: " : ", ", other.second,
                            n == 1 ? "" : fmt::format(" x{}", n), other.first);
        }
        if (left_out > 0) at->second += fmt::format(", and {} more", left_out);
        return at->second;
    }

private:
    using key = std::pair<std::string_view, std::string>; // how far it got, its name
    std::map<key, std::size_t> lost_;
    std::size_t total_ = 0;
    std::map<key, std::string> told_;
};

/// Its cancellation was on the way to the worker that is lost.
inline bool is_unwanted(const call_base& call) noexcept {
    return call.rare && call.rare->cancel_requested;
}

} // namespace detail

/// The calls that a broken link took along.
struct runtime::losses {
    std::vector<counted_ptr<detail::call_base>> again, dead;
    counted_ptr<detail::call_base> suspect; ///< of `again`: it ran when the worker died
    detail::loss_report report;
    std::vector<counted_ptr<detail::call_base>> moved; ///< go on at the new instance of their actor
    detail::lost_actors actors;
    /// Of a link between workers: what its calls fail with.
    std::optional<errc> code;
    std::string summary; ///< "worker-2 (pid 7 at host) was lost: killed by signal 9 (SIGKILL)"
};

} // namespace skein::rt
