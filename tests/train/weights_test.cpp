// SPDX-License-Identifier: Apache-2.0
#include <tests/train/zoo.hpp>

#include <skein/train/build.hpp>
#include <skein/train/training_state.hpp>
#include <skein/train/weights.hpp>

#include <catch2/catch_test_macros.hpp>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

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

using named_tensors = std::vector<std::pair<std::string, torch::Tensor>>;

void write_file(const std::string& path, const named_tensors& tensors) {
    std::vector<tensor_view> views;
    for (const auto& [name, tensor] : tensors)
        views.push_back({name, safetensors_dtype(tensor), tensor.sizes().vec(), bytes_of(tensor)});
    std::ofstream out(path, std::ios::binary);
    write_safetensors(plan_safetensors(views).value(), [&](sk::byte_span part) {
        out << sk::as_text(part);
        return sk::result<void>();
    }).value();
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
    const auto before = weights(*other);
    const auto absent = refusal(*other, dir.path); // all of it in one message
    CHECK(absent.code() == sk::errc::mismatch);
    const std::string text = absent.what();
    CHECK(text.find("2 missing in the folder: weight, bias") != std::string::npos);
    CHECK(text.find("3 that the model has not: in.bias, mean, out") != std::string::npos);
    CHECK(weights(*other) == before);
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
    CHECK(std::string(why.what()).find("2 that the model has not: in.bias, mean") !=
          std::string::npos);
    CHECK(std::string(why.what()).find("strict = false") != std::string::npos);
    CHECK(load_weights(model, dir.path, {.strict = false}).step == 2);
    CHECK(torch::equal(model.out, trained->in->weight));
}

TEST_CASE("a safetensors file fills a module by a map: turned round, joined, split and cast") {
    scratch dir;
    struct net : torch::nn::Module {
        net()
            : turned(register_parameter("turned", torch::zeros({4, 4}))),
              joined(register_parameter("joined", torch::zeros({3, 2}))),
              low(register_parameter("low", torch::zeros({2}))),
              high(register_parameter("high", torch::zeros({2}))),
              scale(register_parameter("scale", torch::zeros({}))),
              strided(register_buffer("strided", torch::zeros({2, 3}).t())) {}
        torch::Tensor turned, joined, low, high, scale, strided;
    } model;
    const auto square = torch::arange(16).view({4, 4}).to(torch::kFloat);
    const auto long_side = torch::arange(6).view({3, 2}).to(torch::kFloat);
    const auto halves = torch::arange(4).to(torch::kBFloat16);
    write_file(dir / "x.safetensors", {{"turned", square},
                                       {"a", long_side.slice(0, 0, 1).clone()},
                                       {"b", long_side.slice(0, 1, 3).clone()},
                                       {"halves", halves},
                                       {"scale", torch::full({}, 7.0, torch::kHalf)},
                                       {"strided", long_side}});
    weight_map map;
    map.turned("turned", "turned")
        .joined({"a", "b"}, "joined", {1, 2})
        .split("halves", {"low", "high"});
    const auto read = load_weights(model, dir / "x.safetensors", map);
    CHECK(read.path == dir / "x.safetensors");
    CHECK(read.step == 0);
    CHECK(torch::equal(model.turned, square.t()));
    CHECK(torch::equal(model.joined, long_side));
    CHECK(torch::equal(model.low, halves.slice(0, 0, 2).to(torch::kFloat)));
    CHECK(torch::equal(model.high, halves.slice(0, 2, 4).to(torch::kFloat)));
    CHECK(model.scale.item<float>() == 7.0f);
    CHECK(torch::equal(model.strided, long_side));
}

TEST_CASE("matrices of more rows than are read at once are turned whole") {
    scratch dir;
    struct net : torch::nn::Module {
        net() : w(register_parameter("w", torch::zeros({3, 1 << 20}))) {}
        torch::Tensor w;
    } model;
    const auto stored = torch::rand({1 << 20, 3});
    write_file(dir / "x.safetensors", {{"w", stored}});
    weight_map map;
    load_weights(model, dir / "x.safetensors", map.turned("w", "w"));
    CHECK(torch::equal(model.w, stored.t()));
}

TEST_CASE("a tied parameter that a file has twice is compared") {
    scratch dir;
    tied model;
    const auto w = torch::rand({3, 3}), bias = torch::rand({3}), mean = torch::rand({3, 2});
    const named_tensors rest{{"in.bias", bias}, {"mean", mean}};
    const auto with = [&](named_tensors more) {
        more.insert(more.end(), rest.begin(), rest.end());
        write_file(dir / "x.safetensors", more);
    };
    with({{"in.weight", w}, {"out", w.clone()}});
    load_weights(*model, dir / "x.safetensors");
    CHECK(torch::equal(model->named_parameters()["out"], w));
    with({{"out", w + 1}});
    load_weights(*model, dir / "x.safetensors");
    CHECK(torch::equal(model->in->weight, w + 1));
    with({{"in.weight", w}, {"out", w + 1}});
    const auto why = refusal(*model, dir / "x.safetensors");
    CHECK(why.code() == sk::errc::mismatch);
    CHECK(std::string(why.what()).find("other values from row 0") != std::string::npos);
    CHECK(torch::equal(model->in->weight, w + 1)); // nothing was written
}

TEST_CASE("ranks whose model was cut up while it was built read the rows that they own") {
    scratch dir;
    Zoo whole(shape::nested);
    {
        torch::NoGradGuard no_grad;
        for (auto& p : whole->parameters()) p.copy_(torch::rand_like(p));
    }
    named_tensors stored;
    for (const auto& p : whole->named_parameters()) {
        const bool turned = p.key().ends_with("in.weight");
        stored.emplace_back(p.key(), (turned ? p.value().t() : p.value()).detach().contiguous());
    }
    for (const auto& b : whole->named_buffers()) stored.emplace_back(b.key(), b.value());
    write_file(dir / "x.safetensors", stored);
    weight_map map;
    map.turned("*.in.weight", "*.in.weight").turned("*.*.in.weight", "*.*.in.weight");
    run_world(3, [&](context& ctx) {
        auto model = build_for<sk::FSDP<zoo_cells>>(ctx, [] {
            const std::lock_guard lock(model_guard);
            torch::manual_seed(1);
            return Zoo(shape::nested);
        });
        const auto cut = skein::train::detail::cut_parameters(*model);
        expect(!cut.empty());
        load_weights(*model, dir / "x.safetensors", map);
        for (const auto& p : model->named_parameters()) {
            const auto& all = whole->named_parameters()[p.key()];
            const auto part = cut.find(p.value().unsafeGetTensorImpl());
            if (part == cut.end()) {
                expect(torch::equal(p.value(), all));
                continue;
            }
            const auto& kept = *part->second;
            expect(torch::equal(kept.values,
                                all.detach().reshape({-1}).narrow(0, kept.first, kept.count)));
        }
    });
}
