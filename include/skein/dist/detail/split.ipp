// SPDX-License-Identifier: Apache-2.0
#pragma once
// The world as the ranks of one color see it.
//
// Groups need different numbers of exchanges, the world's are for all its ranks: so an exchange of
// a group is the next round of the world, and who is done goes on taking part until all are. A rank
// that has failed says so in its next round, which is the last one of everybody.

#include <skein/core/bytes.hpp>
#include <skein/dist/bootstrap.hpp>
#include <skein/dist/detail/abort_body.ipp>
#include <skein/spmd/rendezvous.hpp>
#include <skein/wire/decode.hpp>
#include <skein/wire/encode.hpp>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/core.h>

namespace skein::dist {

namespace detail {

enum class split_state : std::uint8_t { working = 0, done = 1, failed = 2 };

/// What a rank says in one round.
struct split_word {
    split_state state = split_state::working;
    std::int32_t color = -1;
    std::string key;  ///< of the group's exchange; in round 0 the rank's host
    std::string blob; ///< for the group; failed: the error
};

class split_world final : public spmd::rendezvous {
public:
    split_world(spmd::rendezvous& world, int color, std::string name)
        : world_(world), color_(color), name_(std::move(name)) {
        split_word mine;
        mine.key = world.host();
        for (const split_word& word : round(std::move(mine))) {
            const auto r = static_cast<int>(hosts_.size());
            hosts_.push_back(word.key);
            if (word.color != color || color < 0) continue;
            if (r == world.rank()) place_ = static_cast<int>(members_.size());
            members_.push_back(r);
        }
    }

    int rank() const override { return place_; }
    int world_size() const override { return static_cast<int>(members_.size()); }
    int local_rank() const override { return neighbours(place_); }
    int local_size() const override { return neighbours(world_size()); }
    int generation() const override { return world_.generation(); }
    std::string host() const override { return world_.host(); }
    net::token secret() const override { return world_.secret(); }
    spmd::subscription on_lost(spmd::loss_listeners::listener lost) override {
        return world_.on_lost(std::move(lost));
    }
    std::vector<byte_buffer> exchange(std::string_view key, byte_span mine) override {
        split_word word;
        word.key = key;
        word.blob = skein::to_string(mine);
        const auto words = round(std::move(word));
        std::vector<byte_buffer> blobs;
        for (const int m : members_) {
            const split_word& theirs = words[static_cast<std::size_t>(m)];
            if (theirs.state != split_state::working || theirs.key != key) {
                throw error(errc::mismatch, fmt::format("rank {} exchanges '{}', rank {} '{}'",
                                                        world_.rank(), key, m, theirs.key))
                    .with_hint("split with the same options on all ranks");
            }
            blobs.push_back(to_buffer(theirs.blob));
        }
        return blobs;
    }

    /// The world ranks of the group.
    [[nodiscard]] const std::vector<int>& members() const { return members_; }

    /// Takes part until all are done. Throws the first error of any rank, on all of them.
    void finish(const std::optional<error>& failure) {
        while (!over_) {
            split_word mine;
            mine.state = failure ? split_state::failed : split_state::done;
            if (failure) mine.blob = skein::to_string(abort_body(*failure));
            (void)round(std::move(mine));
        }
        if (failure) throw *failure; // what another rank, or the world, had said before
    }

private:
    std::vector<split_word> round(split_word mine) {
        mine.color = color_;
        over_ = true; // whatever is thrown here, all get it
        const auto blobs =
            world_.exchange(fmt::format("{}/round-{}", name_, rounds_++), wire::encode(mine));
        std::vector<split_word> words;
        for (const auto& blob : blobs) words.push_back(wire::decode<split_word>(blob).value());
        bool all_done = true;
        for (std::size_t r = 0; r < words.size(); ++r) {
            all_done = all_done && words[r].state == split_state::done;
            if (words[r].state != split_state::failed) continue;
            const error why = decode_abort(as_bytes(words[r].blob), fmt::format("rank {}", r));
            throw error(why.code(), fmt::format("rank {} failed in split: {}", r, why.text()))
                .with_cause(why.cause())
                .with_hint(why.hint());
        }
        over_ = all_done;
        return words;
    }

    /// Members before `end` on this rank's host.
    int neighbours(int end) const {
        int same = 0;
        for (int p = 0; p < end; ++p) {
            const auto r = static_cast<std::size_t>(members_[static_cast<std::size_t>(p)]);
            same += hosts_[r] == host() ? 1 : 0;
        }
        return same;
    }

    spmd::rendezvous& world_;
    int color_;
    std::string name_;
    int rounds_ = 0, place_ = 0;
    std::vector<int> members_;
    std::vector<std::string> hosts_; // of all ranks of the world
    bool over_ = false;              // no rank takes part in another round
};

} // namespace detail

SKEIN_INLINE std::unique_ptr<comm_thread> split(spmd::rendezvous& world, int color,
                                                comm_options options) {
    detail::split_world part(world, color,
                             fmt::format("skein-split-{}-{}", world.generation(), options.name));
    std::unique_ptr<comm_thread> made;
    std::optional<error> failure;
    try {
        if (color >= 0) {
            options.name += fmt::format("/{}", color);
            options.labels = part.members();
            made = make_comm_thread(part, options);
        }
    } catch (...) {
        failure = to_error(std::current_exception());
    }
    part.finish(failure);
    return made;
}

} // namespace skein::dist
