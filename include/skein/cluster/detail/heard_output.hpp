// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a driver's workers print, as it arrives there: printed in order, with the lines that are
// missing counted.
//
// Lines of a worker have numbers. A worker is heard from its first lines until the head tells its
// end and how many there were; a lost one has an end that nobody will tell.
//
//     struct client : output_events { ... };         // names of workers, and the way back
//     heard_output output(print, events);
//     output.hear(std::move(message));               // prints, then events.printed(node)
//     output.end(lease, lines);                      // "... 3 lines of worker-7 were left out"
//     auto heard = output.hear_out(true, most);      // what is on its way, and no more
//     co_await heard;

#include <skein/core/config.hpp>
#include <skein/cluster/detail/output_messages.hpp>
#include <skein/core/event.hpp>
#include <skein/core/scope.hpp>
#include <skein/core/task.hpp>
#include <skein/core/time.hpp>
#include <skein/proc/output.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace skein {
class loop;
}

namespace skein::cluster::detail {

/// What heard output asks of the driver, and tells it.
class output_events {
public:
    /// The worker's name, for people; empty: the worker of that lease is not known any more.
    [[nodiscard]] virtual std::string name_of(std::uint64_t lease) const = 0;
    /// The last lines of that node are printed: it may send more.
    virtual void printed(std::uint64_t node) = 0;
    /// A head is there that may send some.
    [[nodiscard]] virtual bool is_output_coming() const = 0;

protected:
    output_events() = default;
    output_events(const output_events&) = default;
    output_events& operator=(const output_events&) = default;
    ~output_events() = default;
};

/// Belongs to one loop.
class heard_output {
public:
    /// An empty `print` asks for no lines. Loop and listener must outlive this.
    heard_output(loop& on, proc::print_lines print, output_events& events)
        : on_loop_(on), print_(std::move(print)), events_(events) {}

    [[nodiscard]] bool is_wanted() const noexcept { return static_cast<bool>(print_); }
    /// The worker of that lease has come: its end will be told.
    void expect(std::uint64_t lease, const std::string& node);
    /// The head sends as much as it was told that has been printed: few of these are here at a
    /// time.
    void hear(worker_output m);
    /// The worker has ended after so many lines; those that nobody has sent are missing.
    void end(std::uint64_t lease, std::uint64_t lines);
    /// The head has said again which leases there are: no end of others will be told.
    template <class Known>
    void lose_others(const Known& known) {
        for (auto& [lease, before] : heard_) before.is_lost = !known.contains(lease);
        all_heard_.set();
    }
    /// Waits until all that has arrived is printed, at most for `most`.
    [[nodiscard]] task<void> until_printed(duration most) { return wait_printed(this, most); }
    /// Ends the printing. `waits`: workers have left, and their last lines are on their way. `most`
    /// bounds the wait for these: a terminal may be slow, or a node cut off.
    [[nodiscard]] task<void> hear_out(bool waits, duration most) {
        return hear_last(this, waits, most);
    }

private:
    /// What a worker has printed, until the head has told its end.
    struct heard_lines {
        std::uint64_t next = 1; ///< the number of its next line
        std::string node;
        bool is_lost = false; ///< nobody will tell its end
    };

    void start(std::vector<proc::worker_lines> lines, std::uint64_t node);
    static task<void> print(heard_output* self, std::vector<proc::worker_lines> lines,
                            std::uint64_t node);
    static task<void> wait_printed(heard_output* self, duration most);
    static task<void> hear_last(heard_output* self, bool waits, duration most);

    loop& on_loop_;
    proc::print_lines print_;
    output_events& events_;
    std::map<std::uint64_t, heard_lines> heard_; ///< by lease
    event all_heard_, all_printed_;              ///< look again
    std::size_t printing_now_ = 0;
    bool is_deaf_ = false; ///< nothing is printed any more
    scope printing_;
};

} // namespace skein::cluster::detail

#if SKEIN_HEADER_ONLY
#include <skein/cluster/detail/heard_output.ipp>
#endif
