// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a rank of an elastic job knows of it: a world after the other, each a rendezvous that forms
// once.
//
// A rank begins as a member of none. It builds what it needs, alone, and asks for the first world;
// it asks for the next one when the world is broken (a collective failed because a rank was lost)
// or when all its ranks have agreed on a pause because a change is wanted. The training layers see
// only this interface. spmd::elastic_member implements it over the control connection of a rank,
// sim::local_elastic for threads of one process.

#include <skein/spmd/rendezvous.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace skein::spmd {

/// How a rank comes to ask for the next world.
enum class world_end : std::uint8_t {
    none,   ///< it was in no world yet, and is ready for one
    broken, ///< a collective of its world failed
    paused, ///< all ranks of its world stand behind the same step
};

/// A change of the world, for people and for events.jsonl.
struct world_change {
    std::uint64_t generation = 0;
    int world_size = 0;
    std::string why; ///< "worker 2 (pid 7 at a) was killed by signal 9"
};

/// Blocking; called on the compute thread, but for what says another one.
class elastic_world {
public:
    elastic_world() = default;
    elastic_world(const elastic_world&) = delete;
    elastic_world& operator=(const elastic_world&) = delete;
    virtual ~elastic_world() = default;

    /// Of this process, for good; in no other start of a rank of the job.
    [[nodiscard]] virtual std::uint64_t id() const = 0;
    /// At least and at most so many ranks are in a world.
    [[nodiscard]] virtual int least() const = 0;
    [[nodiscard]] virtual int most() const = 0;

    /// Waits until a world newer than the last one has this rank, and for its other ranks. The
    /// world before may be destroyed from now on, and is of no use.
    ///   last    how the world before came to its end
    ///   why     what failed in a broken one, for people; of a long text the beginning
    ///   result  null: this rank is a member no more, in order: it leaves without an error
    ///   errors  cancelled: a stop was asked for before the first world; aborted: the job ends,
    ///           with the reason; those of joined_group
    [[nodiscard]] virtual std::unique_ptr<rendezvous> next(world_end last,
                                                           const std::string& why = {}) = 0;
    /// How the newest world came to be.
    [[nodiscard]] virtual world_change change() const = 0;

    /// A planned change waits: ranks join or leave. Every rank asks behind each step, and all pause
    /// when one of them says yes. From any thread.
    [[nodiscard]] virtual bool change_wanted() const noexcept = 0;
    /// The supervisor was asked to stop the job: it saves and ends. From any thread.
    [[nodiscard]] virtual bool stop_wanted() const noexcept = 0;
    /// The signal that asked for it, or 0. From any thread.
    [[nodiscard]] virtual int stop_signal() const noexcept { return 0; }
    /// Blocks while it is not known whether this world is still the newest one (the coordinator is
    /// silent); called before each exchange that lets a step be applied. Throws when the world has
    /// ended meanwhile.
    virtual void wait_while_held() = 0;
    /// This rank's process was told to go (SIGTERM, a notice): a change without it is wanted. From
    /// any thread.
    virtual void ask_to_leave(const std::string& why) = 0;
};

} // namespace skein::spmd
