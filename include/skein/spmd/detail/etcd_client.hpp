// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls to a cluster of etcd that wait until one of its members answers.
//
// A try at one member ends in one of four ways: an answer; etcd's word that this cannot be (an
// error of the caller's); trouble that passes (no member, no leader, no space), after which the next
// member is asked, and all of them again after a pause; or a mistake, which is thrown when all
// members make one.
//
// A call may have been carried out although its answer was lost, and is then made again: callers
// send only what comes to the same when it is done twice.

#include <skein/core/backoff.hpp>
#include <skein/core/error.hpp>
#include <skein/core/mutex.hpp>
#include <skein/core/result.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/spmd/detail/etcd_messages.hpp>
#include <skein/spmd/detail/etcd_transport.hpp>
#include <skein/spmd/etcd_register.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::spmd::detail {

/// Checks and completes: schemes, slashes.
///   errors  those of etcd_register's constructor
[[nodiscard]] etcd_options checked(etcd_options options);

/// Between rounds over all members.
[[nodiscard]] inline backoff etcd_backoff() noexcept {
    return {std::chrono::milliseconds(50), std::chrono::milliseconds(3200)};
}

class etcd_client {
public:
    etcd_client(etcd_options options, std::unique_ptr<etcd_transport> transport);

    [[nodiscard]] const etcd_options& options() const noexcept { return options_; }

    /// POSTs until a member answers with what `read` takes.
    ///   errors  cancelled; those of etcd_register; not_found, already_exists and invalid_argument:
    ///           etcd's own word on this request
    template <class Answer>
    [[nodiscard]] task<Answer> ask(std::string path, std::string body,
                                   result<Answer> (*read)(std::string_view),
                                   std::optional<duration> timeout = {}) {
        std::optional<Answer> answer;
        reader take = [&answer, read](std::string_view text) -> result<etcd_header> {
            auto found = read(text);
            if (!found) return found.error();
            answer.emplace(std::move(*found));
            return answer->header;
        };
        auto calling = call(std::move(path), std::move(body), &take, timeout);
        co_await calling;
        co_return std::move(*answer);
    }

    /// One watch at one member, until on_line says false, the stream ends or breaks, or the time is
    /// over: then the caller reads the key again.
    ///   result  whether it was a watch: false where it did not begin, or etcd ended it at once
    ///   errors  cancelled
    [[nodiscard]] task<bool> watch(std::string body, etcd_line* on_line, duration at_most);

    /// One try at one member, and no word about it: for what may as well not happen.
    [[nodiscard]] task<void> try_once(std::string path, std::string body, duration timeout);

private:
    using reader = unique_function<result<etcd_header>(std::string_view)>;

    /// How a try at a member ended.
    struct verdict {
        enum class kind : std::uint8_t { good, again, away, mistake, refused };
        kind what = kind::good;
        std::optional<error> why;
    };

    [[nodiscard]] task<void> call(std::string path, std::string body, reader* take,
                                  std::optional<duration> timeout);
    [[nodiscard]] task<verdict> attempt(std::size_t member, const std::string& path,
                                        const std::string& body, reader* take, duration timeout);
    [[nodiscard]] task<verdict> log_in(std::size_t member);
    [[nodiscard]] task<verdict> explain_missing(std::size_t member, duration timeout);
    [[nodiscard]] verdict judge(std::size_t member, const etcd_answer& answer, reader* take,
                                const std::string& token);
    [[nodiscard]] verdict judge_failure(std::size_t member, const etcd_failure& failure,
                                        const std::string& token);
    [[nodiscard]] std::optional<error> other_cluster(std::size_t member, std::uint64_t cluster);
    [[nodiscard]] verdict no_auth(const etcd_failure& failure, error why) const;

    void leave(std::size_t member) noexcept; ///< the next one is asked from now on
    void note_good(std::size_t member, std::string_view path);
    void note_trouble(const error& why);
    void note_full(const error& why);

    etcd_options options_;
    std::unique_ptr<etcd_transport> transport_;
    std::size_t at_ = 0; ///< the member that is asked
    std::string token_;
    mutex logging_in_;                     ///< one at a time
    bool has_users_ = true;                ///< false: etcd says that it knows no users
    std::optional<std::uint64_t> cluster_; ///< of the first answer
    std::optional<time_point> away_since_;
    bool said_full_ = false;
};

} // namespace skein::spmd::detail

#if SKEIN_HEADER_ONLY
#include <skein/spmd/detail/etcd_client.ipp>
#endif
