// SPDX-License-Identifier: Apache-2.0
#include <tests/train/train_support.hpp>

#include <skein/train/training_state.hpp>
#include <skein/train/weights.hpp>

#include <catch2/catch_test_macros.hpp>

#include <string>

using namespace train_test;

namespace {

struct tiedImpl : torch::nn::Module {
    tiedImpl() : in(3, 3) {
        register_module("in", in);
        register_parameter("out", in->weight); // one tensor, two names
        mean = register_buffer("mean", torch::zeros({2, 3}).t());
    }
    torch::nn::Linear in;
    torch::Tensor mean;
};
TORCH_MODULE(tied);

/// The error of loading, for looking at.
skein::error refusal(torch::nn::Module& module, const std::string& path) {
    try {
        (void)load_weights(module, path);
    } catch (const skein::error& why) {
        return why;
    }
    return skein::error(skein::errc::unknown, "it was loaded");
}

/// Saves the module as two checkpoints of a run; the second with other values, which are returned.
std::vector<float> save_twice(torch::nn::Module& module, const std::string& run) {
    skein::posix_disk disk;
    flat_store flat(module);
    flat_optimizer optimizer(sk::AdamW{}, flat);
    sampler order({.samples = 8, .batch = 4, .seed = 1});
    training_state state(flat, optimizer, order);
    checkpointer saver(disk, run + "/checkpoints");
    (void)saver.save(state.save(1, 1));
    flat.params_P().add_(1.0);
    (void)saver.save(state.save(2, 1));
    return weights(module);
}

} // namespace

TEST_CASE(
    "the weights of a run's newest checkpoint fill a fresh module, buffers and tied ones too") {
    scratch dir;
    tied trained, fresh;
    trained->mean.fill_(7);
    const auto expected = save_twice(*trained, dir.path);
    const auto read = load_weights(*fresh, dir.path);
    CHECK(read.step == 2);
    CHECK(weights(*fresh) == expected);
    CHECK(torch::equal(fresh->mean, trained->mean));

    const auto older = load_weights(*fresh, dir.path + "/checkpoints/step-00000001");
    CHECK(older.step == 1);
    CHECK(weights(*fresh) != expected);
}

TEST_CASE("a damaged checkpoint is passed over for the one before it, and left as it is") {
    scratch dir;
    tied trained, fresh;
    (void)save_twice(*trained, dir.path);
    const auto shard = dir.path + "/checkpoints/step-00000002/shard-0-of-1.safetensors";
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
    const auto read = load_weights(*fresh, dir.path);
    CHECK(read.step == 1);
    REQUIRE(read.passed_over.size() == 1); // and it is said
    CHECK(read.passed_over[0].find("checkpoint of step 2 is passed over for that of step 1") == 0);
    CHECK(std::filesystem::exists(shard));
    const auto why = refusal(*fresh, dir.path + "/checkpoints/step-00000002");
    CHECK(std::string(why.what()).find("shard-0-of-1") != std::string::npos);
}

TEST_CASE("another model or no checkpoint at all is said with the tensor or the folder") {
    scratch dir;
    tied trained;
    (void)save_twice(*trained, dir.path);
    torch::nn::Linear other(3, 3);
    const auto absent = refusal(*other, dir.path);
    CHECK(absent.code() == sk::errc::not_found);
    CHECK(std::string(absent.what()).find("model.weight") != std::string::npos);
    const auto nothing = refusal(*other, dir.path + "/nowhere");
    CHECK(nothing.code() == sk::errc::not_found);
    CHECK(std::string(nothing.what()).find("nowhere") != std::string::npos);
}

TEST_CASE(
    "tensors of a checkpoint that the module has not are refused by name, unless told otherwise") {
    scratch dir;
    tied trained;
    (void)save_twice(*trained, dir.path);
    struct smaller : torch::nn::Module {
        smaller() : out(register_parameter("out", torch::zeros({3, 3}))) {}
        torch::Tensor out;
    } model;
    const auto why = refusal(model, dir.path);
    CHECK(why.code() == sk::errc::mismatch);
    CHECK(std::string(why.what()).find("2 tensors that the model has not: in.bias, mean") !=
          std::string::npos);
    CHECK(std::string(why.what()).find("strict = false") != std::string::npos);
    CHECK(load_weights(model, dir.path, {.strict = false}).step == 2);
    CHECK(torch::equal(model.out, trained->in->weight));
}
