// SPDX-License-Identifier: Apache-2.0
// The bodies of checkpoint_command.hpp.
#include "checkpoint_command.hpp"

#include "checkpoint_text.hpp"

#include <skein/core/constants.hpp>
#include <skein/core/error.hpp>
#include <skein/core/notice.hpp>
#include <skein/core/posix_disk.hpp>
#include <skein/sched/resources.hpp>
#include <skein/train/checkpoint.hpp>
#include <skein/train/weight_folder.hpp>
#include <skein/train/weight_mean.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace skein_program {
namespace {

using skein::errc;
using skein::error;
using train::weights_kind;

constexpr int trouble = 2; ///< of diff, as of diff(1): what is to be compared cannot be read

/// Without slashes at its end, which a shell writes when it completes a name.
std::string plain_path(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

std::string_view kind_name(weights_kind kind) {
    switch (kind) {
    case weights_kind::checkpoint: return "a checkpoint";
    case weights_kind::hugging_face: return "a folder of Hugging Face's";
    case weights_kind::file: return "a safetensors file";
    }
    return "";
}

int show(const checkpoint_arguments& args) {
    skein::posix_disk here;
    const auto [kind, path] = train::find_weights(here, plain_path(args.path));
    shown_weights shown{.path = path, .kind = std::string(kind_name(kind))};
    if (kind == weights_kind::checkpoint) {
        auto found = train::open_checkpoint(here, path, nullptr, false);
        shown.path = found.path();
        shown.manifest = found.manifest();
        shown.tensors = train::checkpoint_tensors(std::move(found)).tensors();
    } else {
        shown.tensors = train::open_weights(here, plain_path(args.path))->tensors();
    }
    fmt::print("{}", args.json ? show_json(shown) : show_text(shown));
    return skein::exit_code::done;
}

/// A checkpoint, or all of a run.
std::vector<verified_path> verify_all(skein::disk& here, const std::string& path) {
    std::vector<std::string> folders{path};
    if (!here.status(skein::join_path(path, "manifest.json"))) {
        const auto inner = skein::join_path(path, "checkpoints");
        const train::checkpointer run(here, here.status(inner) ? inner : path);
        folders.clear();
        for (const auto step : run.steps()) folders.push_back(run.step_path(step));
        // Says what is missing. A folder that is named as a checkpoint is one without a manifest.
        if (folders.empty() && path.find("step-") == std::string::npos)
            (void)train::open_checkpoint(here, path);
        if (folders.empty()) folders.push_back(path);
    }
    std::vector<verified_path> all;
    for (const auto& folder : folders)
        all.push_back({folder, train::verify_checkpoint(here, folder)});
    return all;
}

int verify(const checkpoint_arguments& args) {
    skein::posix_disk here;
    const auto given = plain_path(args.path);
    const auto [kind, path] = train::find_weights(here, given);
    std::vector<verified_path> all;
    if (kind == weights_kind::checkpoint) {
        all = verify_all(here, path);
    } else {
        verified_path one{.path = path, .has_checksums = false};
        try {
            (void)train::open_weights(here, given);
        } catch (const error& why) {
            const auto& file = why.where().empty() ? path : why.where();
            one.seen.damage.push_back({file, std::nullopt, why.text()});
        }
        all.push_back(std::move(one));
    }
    bool whole = true;
    for (const auto& each : all) {
        whole = whole && each.seen.is_whole();
        if (!args.json) fmt::print("{}", verified_text(each));
    }
    if (args.json) fmt::print("{}", verified_json(all));
    return whole ? skein::exit_code::done : skein::exit_code::failed;
}

int compare(const checkpoint_arguments& args) {
    skein::posix_disk here;
    const auto first = plain_path(args.path), second = plain_path(args.second);
    const bool all = !args.weights &&
                     train::find_weights(here, first).kind == weights_kind::checkpoint &&
                     train::find_weights(here, second).kind == weights_kind::checkpoint;
    const auto open = [&](const std::string& path) -> std::unique_ptr<train::weight_source> {
        if (!all) return train::open_weights(here, path);
        return std::make_unique<train::checkpoint_tensors>(train::open_checkpoint(here, path));
    };
    const auto found = train::compare_weights(*open(first), *open(second));
    fmt::print("{}", args.json ? diff_json(found, first, second) : diff_text(found, first, second));
    return found.different.empty() ? skein::exit_code::done : skein::exit_code::failed;
}

/// As diff(1) has it: 1 is for what differs.
int diff(const checkpoint_arguments& args) {
    try {
        return compare(args);
    } catch (const error& why) {
        skein::write_notice(fmt::format("error: {}\n", skein::printable_lines(why.what())));
        return trouble;
    }
}

train::export_options export_options_of(const checkpoint_arguments& args) {
    train::export_options how;
    if (!args.dtype.empty())
        how.dtype = args.dtype == "f32" ? "F32" : args.dtype == "bf16" ? "BF16" : "F16";
    if (args.max_shard.empty()) return how;
    const auto read = sched::parse_resources("memory=" + args.max_shard);
    if (!read || read->memory == 0)
        throw error(errc::usage, fmt::format("--max-shard {}: a size is wanted", args.max_shard))
            .with_hint("with a unit: 5GB, 512MiB");
    how.max_shard = read->memory;
    return how;
}

void tell(const train::exported_weights& made) {
    fmt::print("{}: {} bytes of tensors in {}\n", skein::printable(made.path),
               skein::with_commas(made.bytes), count_text(made.files.size(), "file"));
}

int write_folder(const checkpoint_arguments& args) {
    const auto how = export_options_of(args);
    skein::posix_disk here;
    const auto from = train::open_weights(here, plain_path(args.path), {.average = args.averages});
    tell(train::export_safetensors(*from, args.into, how));
    return skein::exit_code::done;
}

int average(const checkpoint_arguments& args) {
    const auto how = export_options_of(args);
    skein::posix_disk here;
    std::vector<std::unique_ptr<train::weight_source>> of;
    for (const auto& path : args.paths) of.push_back(train::open_weights(here, plain_path(path)));
    const auto count = of.size();
    const train::mean_weights mean(std::move(of));
    const auto made = train::export_safetensors(mean, args.into, how);
    fmt::print("the mean of {}\n", count);
    tell(made);
    return skein::exit_code::done;
}

constexpr auto what_a_path_is = "a run's folder (its newest whole checkpoint), a checkpoint's "
                                "folder, a .safetensors file, or a "
                                "folder of Hugging Face's";

std::string refuse_empty(const std::string& path) { return path.empty() ? "it is empty" : ""; }

void add_folder_options(CLI::App& sub, checkpoint_arguments& args) {
    sub.add_option("--max-shard", args.max_shard,
                   "bytes of tensors of one file: 5GB, 512MiB (default: 5GB)")
        ->check(refuse_empty);
    sub.add_option("--dtype", args.dtype,
                   "of numbers of floating point: f32, bf16, f16 (default: as they are)")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}));
}

} // namespace

void declare_checkpoints(CLI::App& app, checkpoint_arguments& args, std::function<int()>& chosen) {
    auto* const group =
        app.add_subcommand("checkpoint", "look at checkpoints and weights, and give them on");
    group->require_subcommand(1);
    const auto command = [&](const char* name, const char* what,
                             int (*does)(const checkpoint_arguments&)) {
        auto* const sub = group->add_subcommand(name, what);
        sub->callback([&chosen, &args, does] { chosen = [&args, does] { return does(args); }; });
        return sub;
    };
    const auto of_path = [&](CLI::App* sub) {
        sub->add_option("path", args.path, what_a_path_is)->required()->check(refuse_empty);
        return sub;
    };
    of_path(command("show", "step, ranks, metrics, and every tensor", &show))
        ->add_flag("--json", args.json, "one JSON object");
    of_path(command("verify",
                    "read every byte; 0 if all checkpoints there are whole, 1 if not, with files "
                    "and chunks",
                    &verify))
        ->add_flag("--json", args.json, "one JSON object");
    auto* const two = of_path(command(
        "diff", "tensors that are not the same; 0 if all are, 1 if not, 2 if one cannot be read",
        &diff));
    two->add_option("second", args.second, "as path")->required()->check(refuse_empty);
    two->add_flag("--weights", args.weights,
                  "of two checkpoints their weights alone, not the optimizer's state");
    two->add_flag("--json", args.json, "one JSON object");
    auto* const out = of_path(
        command("export", "write the weights into a new folder of safetensors with an index",
                &write_folder));
    out->add_option("dir", args.into, "that is not there yet")->required()->check(refuse_empty);
    out->add_flag("--averages", args.averages,
                  "the averages that the training kept, in place of the weights");
    add_folder_options(*out, args);
    auto* const mean = command("average", "write the mean of the weights of several", &average);
    mean->add_option("paths", args.paths, what_a_path_is)
        ->required()
        ->expected(2, 10'000)
        ->check(refuse_empty);
    mean->add_option("--out", args.into, "a folder that is not there yet")
        ->required()
        ->check(refuse_empty);
    add_folder_options(*mean, args);
}

} // namespace skein_program
