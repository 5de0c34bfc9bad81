// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gradients of logical shards, added by one tree (detail/shard_tree.hpp) whatever the number of
// ranks.
//
// Each shard's backward pass makes gradients of its own. Those of a right leaf are added to its left
// sibling's, which are in the store; what begins another subtree first moves what is in the store
// aside. Of the last shard each unit is joined with what was put aside as soon as it is complete, and
// leaves: two ranks with half of the tree each add theirs as they always do; else every rank gathers
// the subtrees of all and adds them itself.
//   memory  one more gradient buffer for each subtree that is put aside, at most log2 of the shards
//           that a rank has; with exchange by gathering, one for each subtree of all ranks

#include <skein/dist/comm_thread.hpp>
#include <skein/torch/torch.hpp>
#include <skein/train/detail/shard_tree.hpp>
#include <skein/train/flat.hpp>

#include <cstddef>
#include <vector>

namespace skein::train::detail {

class shard_sums {
public:
    /// Store and group must outlive it.
    ///   group  all ranks; null: there is one
    ///   errors not_supported for gradients that are not summed in float32
    shard_sums(flat_store& store, int shards, dist::comm_thread* group);

    /// The ranks are others; nothing is under way.
    void rebind(dist::comm_thread* group);

    void begin_step();
    /// The backward pass of the next shard of this rank. That of the one before is over.
    void begin_shard();
    /// After the last shard: a unit whose gradients are in place becomes this rank's part of the sum,
    /// and leaves.
    [[nodiscard]] dist::ticket send(const flat_unit& unit, dist::collective_tag tag);
    /// What send() began has ended: the unit's place holds the sum over all shards.
    void take(const flat_unit& unit);
    /// Without other ranks: the same for all units.
    void finish();

private:
    [[nodiscard]] at::Tensor aside(std::size_t number, const flat_unit& unit) const;
    void join(std::size_t number, const flat_unit& unit) const;
    void put_aside();
    void add_up(const flat_unit& unit) const;

    flat_store& store_;
    int shards_;
    dist::comm_thread* group_ = nullptr;
    shard_range own_;
    std::vector<std::size_t> counts_; // of subtrees, by rank
    std::vector<shard_merge> merges_; // of the subtrees of all ranks
    bool halves_ = false;             // two ranks with one subtree each

    int shard_ = 0;                  // in hand
    std::vector<shard_node> row_;    // subtrees of the shards up to the one in hand
    std::vector<std::size_t> joins_; // put aside, to be added to what is in place, in this order
    std::vector<at::Tensor> aside_;  // laid out as the gradients; the first ones are in use
    at::Tensor mine_, gathered_;     // by unit: this rank's subtrees, and those of all
};

} // namespace skein::train::detail

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/shard_sums.ipp>
#endif
