// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tensors of a foreign folder fill which of a module: one table, read in both directions.
//
//     weight_map map;
//     map.turned("transformer.h.*.mlp.c_fc.weight", "h.*.mlp.c_fc.weight")     // stored as [in, out]
//         .joined({"h.*.q.weight", "h.*.k.weight", "h.*.v.weight"}, "h.*.qkv.weight")
//         .tied("lm_head.weight", "transformer.wte.weight")                    // stored once or twice
//         .ignored("h.*.attn.bias");                                          // not of the model
//
// A pattern's `*` is one part of a name, between dots; the n-th of one side is the n-th of the
// other. The first rule that fits counts. A name that no rule speaks of is the same on both sides,
// so that an empty map is for folders with the module's own names.
//
// Turning is said by the table and never guessed: a square weight has the same shape both ways.
// plan_weights() compares all names, types and shapes and says all that is wrong in one message,
// before anything is read; plan_export() is the way back.

#include <skein/train/weight_source.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace skein::train {

/// Tensors of both sides that hold the same numbers: those of each side, one below the other along
/// dimension 0, in order.
struct weight_rule {
    std::vector<std::string> theirs; ///< patterns; of a folder
    std::vector<std::string> ours;   ///< patterns; of a module
    bool turned = false;             ///< theirs are stored with both dimensions exchanged
    /// How the rows are shared out over the side with several tensors, as 4 : 1 : 1; empty: equally.
    std::vector<std::int64_t> shares{};
};

/// The table.
class weight_map {
public:
    /// Another name.
    weight_map& same(std::string theirs, std::string ours);
    /// A matrix that is stored turned round, as GPT-2's layers are.
    weight_map& turned(std::string theirs, std::string ours);
    /// Several of theirs are one of ours.
    weight_map& joined(std::vector<std::string> theirs, std::string ours,
                       std::vector<std::int64_t> shares = {}, bool turned = false);
    /// One of theirs is several of ours.
    weight_map& split(std::string theirs, std::vector<std::string> ours,
                      std::vector<std::int64_t> shares = {}, bool turned = false);
    /// A second name that a folder may have for one tensor, beside the first or in its place. Both
    /// there with other values is an error. Throws invalid_argument when they have other stars.
    weight_map& tied(std::string again, std::string theirs);
    /// Of theirs, but no weight: masks and the like. Not exported.
    weight_map& ignored(std::string theirs);
    /// Folders may leave this beginning of names out: those of a model without its head.
    weight_map& optional_prefix(std::string prefix);

    /// Rules in order. Throws invalid_argument for one that cannot be followed both ways.
    weight_map& add(weight_rule rule);

    [[nodiscard]] const std::vector<weight_rule>& rules() const noexcept { return rules_; }
    [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& ties() const noexcept {
        return ties_;
    }
    [[nodiscard]] bool is_ignored(std::string_view theirs) const;
    /// The name in this table of a name in a folder, which may lack the optional prefix.
    [[nodiscard]] std::string full_name(const std::string& stored) const;

private:
    [[nodiscard]] bool speaks_of(std::string_view theirs) const;

    std::vector<weight_rule> rules_;
    std::vector<std::pair<std::string, std::string>> ties_; // a further name, the first one
    std::vector<std::string> ignored_;
    std::string prefix_;
};

/// A tensor of a module, as the plan sees it.
struct wanted_tensor {
    std::string name{};
    std::string dtype{};
    std::vector<std::int64_t> shape{};      ///< of the whole
    std::vector<std::string> other_names{}; ///< under which the same tensor is registered, too
};

/// Rows of one tensor that become rows of another.
struct planned_piece {
    std::string name{};         ///< of the tensor to read, as its source calls it
    std::int64_t first_row = 0; ///< of it, after turning
    std::int64_t rows = 0;
    std::int64_t at = 0; ///< the first row in what is filled

    friend bool operator==(const planned_piece&, const planned_piece&) = default;
};
/// How one tensor is filled.
struct planned_tensor {
    std::string name{};
    std::string dtype{};
    std::vector<std::int64_t> shape{};
    bool turned = false; ///< the pieces are rows of their tensors turned round
    std::vector<planned_piece> pieces{};
};
/// What is to be done, when everything fits.
struct weight_plan {
    std::vector<planned_tensor> tensors{}; ///< in the order in which they were wanted
    /// Tensors of the source that have to have the same values.
    std::vector<std::pair<std::string, std::string>> equal{};
};

/// How each tensor of a module is filled from a folder.
///   strict  tensors of the folder that fill nothing are wrong
///   where   the folder, for the message
///   errors  mismatch, or not_found when tensors are missing and nothing else is wrong: one message
///           with what is missing, what is additional and what has another type or shape
[[nodiscard]] weight_plan plan_weights(const weight_map& map, const source_table& theirs,
                                       const std::vector<wanted_tensor>& ours, bool strict,
                                       const std::string& where);

/// How each tensor of a folder is filled from tensors of a module: the same table the other way.
///   errors  mismatch when the rows of a tensor cannot be shared out as the map says, or the map
///           names tensors that are not there
[[nodiscard]] weight_plan plan_export(const weight_map& map, const source_table& ours);

} // namespace skein::train

#if SKEIN_HEADER_ONLY
#include <skein/train/detail/weight_map.ipp>
#endif
