// SPDX-License-Identifier: Apache-2.0
// Logical shards: a run has the same bits with any number of ranks.
#include <skein/metrics/classification.hpp>
#include <skein/train/batch_growth.hpp>
#include <skein/train/detail/shard_tree.hpp>
#include <skein/train/fsdp.hpp>
#include <skein/train/training_state.hpp>
#include <skein/train/zero.hpp>

#include <tests/train/train_support.hpp>
#include <tests/train/zoo.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>

namespace logical_shards_test {

using namespace train_test;
using Catch::Matchers::ContainsSubstring;

namespace {

using tiny_ddp = sk::DDP<tiny_buckets>;

/// What makes worlds differ: dropout, statistics of batches, a branch for some samples only.
struct TrickyImpl : torch::nn::Module {
    TrickyImpl() : in(8, 16), norm(16), drop(0.3), rare(16, 16), out(16, 4) {
        register_module("in", in);
        register_module("norm", norm);
        register_module("drop", drop);
        register_module("rare", rare);
        register_module("out", out);
    }
    torch::Tensor forward(const sample_batch& b) {
        auto h = in(b.x);
        if (b.x.size(0) > 1) h = norm(h); // one sample has no variance
        h = drop(torch::tanh(h));
        if (b.ids[0] % 5 < 2) h = h + rare(h);
        return out(h);
    }
    torch::nn::Linear in;
    torch::nn::BatchNorm1d norm;
    torch::nn::Dropout drop;
    torch::nn::Linear rare, out;
};
TORCH_MODULE(Tricky);

Tricky make_tricky() {
    const std::lock_guard lock(model_guard);
    torch::manual_seed(7);
    return Tricky();
}

/// Every third sample counts for more than the others.
sk::weighted_loss tricky_loss(Tricky& net, const sample_batch& b) {
    const auto each = torch::nn::functional::cross_entropy(
        net->forward(b), b.y,
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    std::vector<float> weights;
    for (const auto id : b.ids) weights.push_back(id % 3 == 0 ? 1.7f : 0.3f);
    const auto w = torch::tensor(weights);
    return {(each * w).sum(), w.sum()};
}

struct run_options {
    int shards = 4, world = 1;
    std::string transport = "shm";
    std::int64_t steps = 20, checkpoint_every = 0, batch = 30;
    std::uint64_t samples = 100;
    last_batch last = last_batch::drop;
    bool resume = false;
    int redo_at = 0;
};

/// What must be the same bits.
struct outcome {
    std::vector<float> state; ///< parameters and buffers
    std::string rows;         ///< of metrics.csv
    sk::train::fit_result result;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<float> state_of(const torch::nn::Module& m) {
    auto all = weights(m);
    for (const auto& b : m.buffers()) {
        const auto flat = b.detach().to(torch::kFloat).contiguous();
        const auto* from = static_cast<const float*>(flat.const_data_ptr());
        all.insert(all.end(), from, from + flat.numel());
    }
    return all;
}

std::string text_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

run_config config_of(const run_options& o, const scratch& dir) {
    auto config = quiet_config(dir.path);
    config.scaling.logical_shards = o.shards;
    config.max_steps = o.steps;
    config.global_batch = o.batch;
    config.last = o.last;
    config.clip = 0.5;
    config.eval_every = 5;
    config.eval_batch = 2;
    config.write_files = true;
    config.checkpoint.enabled = o.checkpoint_every > 0;
    config.checkpoint.every = o.checkpoint_every;
    config.resume = o.resume ? resume_mode::latest : resume_mode::fresh;
    return config;
}

/// What is reported in each kind, in shards and outside of them.
void report_all(session& session, const sample_batch& b, double loss) {
    session.report(metric_kind::sum, "third", 1.0 / 3.0 + static_cast<double>(b.ids[0]));
    session.report(metric_kind::mean, "mean", loss);
    session.report(metric_kind::max, "most", loss);
    if (b.ids[0] % 2 == 0) session.report(metric_kind::min, "least", loss);
    if (b.ids[0] % 3 == 0) session.report(metric_kind::last, "last", loss);
}

template <class Strategy, class... Rules>
void train_tricky(context& ctx, const run_options& o, const run_config& config, outcome* out,
                  Rules... rules) {
    at::set_num_threads(1);
    auto net = make_tricky();
    const numbers data{o.samples}, held_out{13};
    const auto loss = [&](Tricky& m, const sample_batch& b, metric_set& numbers) {
        const auto value = tricky_loss(m, b);
        if (!m->is_training()) numbers.mean("half", value.sum.item<double>() / 2);
        return value;
    };
    sk::Trainer<Strategy, Rules...> trainer(ctx, config, rules...);
    auto session = trainer.open(net, sk::AdamW{.weight_decay = 0.1}, constant_rate{1e-2});
    session.expect_weights();
    session.evaluate_on(net, loss, held_out);
    session.begin(sk::train::detail::make_input(data));
    bool redone = false;
    while (session.draw()) {
        session.report(metric_kind::sum, "before", 0.1);
        {
            const std::lock_guard lock(model_guard); // ranks share the generator
            while (const void* const micro = session.next_micro()) {
                const auto& b = *static_cast<const sample_batch*>(micro);
                const auto value = tricky_loss(net, b);
                session.backward(value);
                report_all(session, b, value.sum.template item<double>());
            }
        }
        session.report(metric_kind::sum, "behind", 0.2);
        if (session.finished() + 1 == static_cast<std::uint64_t>(o.redo_at) && !redone) {
            redone = true;
            session.agree();
            session.redo();
            continue;
        }
        session.complete();
    }
    const auto result = session.finish();
    if (!ctx.is_first()) return;
    out->result = result;
    out->state = state_of(*net);
    out->rows = text_of(result.run_path + "/metrics.csv");
}

template <class... Rules>
outcome run_tricky(const run_options& o, const scratch& dir, Rules... rules) {
    outcome out;
    run_world(
        o.world,
        [&](context& ctx) { train_tricky<tiny_ddp>(ctx, o, config_of(o, dir), &out, rules...); },
        o.transport);
    return out;
}
template <class... Rules>
outcome run_tricky(const run_options& o, Rules... rules) {
    const scratch dir;
    return run_tricky(o, dir, rules...);
}

} // namespace

TEST_CASE(
    "any number of ranks up to that of the shards trains to the same bits and the same rows") {
    for (const int shards : {4, 8}) {
        const auto alone = run_tricky({.shards = shards});
        CHECK(alone.rows.find("third") != std::string::npos);
        for (const int world : {2, 3, 4}) {
            INFO(shards << " shards on " << world << " ranks");
            const auto many = run_tricky({.shards = shards, .world = world});
            CHECK(same_bits(many.state, alone.state));
            CHECK(many.rows == alone.rows);
        }
        CHECK_FALSE(same_bits(run_tricky({.shards = 2 * shards}).state, alone.state));
    }
}

TEST_CASE("all transports give the same bits for logical shards") {
    const auto alone = run_tricky({.steps = 6});
    for (const char* const transport : {"ring", "hierarchical"})
        for (const int world : {2, 3, 4}) {
            INFO(transport << " x" << world);
            const auto many = run_tricky({.world = world, .transport = transport, .steps = 6});
            CHECK(same_bits(many.state, alone.state));
            CHECK(many.rows == alone.rows);
        }
}

TEST_CASE("a run of logical shards that another number of ranks resumes has the same bits") {
    const auto whole = run_tricky({.shards = 8, .steps = 12, .checkpoint_every = 4});
    const scratch dir;
    run_options o{.shards = 8, .world = 3, .steps = 4, .checkpoint_every = 4};
    (void)run_tricky(o, dir);
    o.resume = true;
    o.steps = 8;
    o.world = 1;
    (void)run_tricky(o, dir);
    o.steps = 12;
    o.world = 4;
    const auto parts = run_tricky(o, dir);
    CHECK(parts.result.first_step == 8);
    CHECK(same_bits(parts.state, whole.state));
    o.shards = 4;
    o.steps = 16;
    try {
        (void)run_tricky(o, dir);
        FAIL("a run of 8 shards went on with 4");
    } catch (const sk::error& why) {
        CHECK(why.code() == sk::errc::mismatch);
        CHECK_THAT(why.what(), ContainsSubstring("8 logical shards, now 4"));
    }
}

TEST_CASE("a step of logical shards that is taken back has the bits of one that ran once") {
    const auto once = run_tricky({.steps = 6});
    for (const int world : {1, 3}) {
        const auto again = run_tricky({.world = world, .steps = 6, .redo_at = 3});
        CHECK(same_bits(again.state, once.state));
        CHECK(again.rows == once.rows);
    }
}

TEST_CASE("a last batch with fewer samples than shards, and a batch that grows, go by shard") {
    const run_options o{
        .shards = 8, .steps = 9, .batch = 16, .samples = 35, .last = last_batch::shorten};
    const sk::batch_growth rule({.at_steps = {4}, .max = 32});
    const auto alone = run_tricky(o), grown = run_tricky(o, rule);
    CHECK_FALSE(same_bits(alone.state, grown.state));
    for (const int world : {2, 3}) {
        auto many = o;
        many.world = world;
        CHECK(same_bits(run_tricky(many).state, alone.state));
        const auto also = run_tricky(many, rule);
        CHECK(same_bits(also.state, grown.state));
        CHECK(also.rows == grown.rows);
    }
}

// ---- against the definition ---------------------------------------------------------------------

namespace {

using gradients = std::vector<at::Tensor>; // of one shard, by parameter

/// The sum over shards [first, first + size) by the tree.
gradients tree_sum(const std::vector<gradients>& shards, std::size_t first, std::size_t size) {
    if (size == 1) return shards[first];
    auto left = tree_sum(shards, first, size / 2);
    const auto right = tree_sum(shards, first + size / 2, size / 2);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = left[i] + right[i];
    return left;
}

/// What a step of these weights should come to.
struct step_oracle {
    gradients sum;
    std::vector<at::Tensor> buffers;
    double weight = 0.0, loss = 0.0;
};
step_oracle expected_step(Tricky& model, const run_config& config, std::uint64_t step,
                          const std::vector<std::uint64_t>& ids) {
    const auto shards = static_cast<std::size_t>(config.scaling.logical_shards);
    Tricky net;
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < net->parameters().size(); ++i)
        net->parameters()[i].copy_(model->parameters()[i]);
    std::vector<gradients> all;
    step_oracle out;
    for (std::size_t s = 0; s < shards; ++s) {
        for (std::size_t i = 0; i < net->buffers().size(); ++i)
            net->buffers()[i].copy_(model->buffers()[i]);
        const auto [first, last] =
            rank_range(ids.size(), static_cast<int>(s), static_cast<int>(shards));
        const std::vector<std::uint64_t> mine(ids.begin() + static_cast<std::ptrdiff_t>(first),
                                              ids.begin() + static_cast<std::ptrdiff_t>(last));
        const auto batch = numbers{100}.batch(mine);
        seed_step(config.seed, step, static_cast<int>(s));
        const torch::AutoGradMode grad(true);
        net->zero_grad();
        const auto loss = tricky_loss(net, batch);
        loss.sum.backward(at::full_like(loss.sum, 1.0 / static_cast<double>(ids.size())));
        out.weight += loss.weight.item<double>();
        out.loss +=
            loss.sum.item<double>() / loss.weight.item<double>() * loss.weight.item<double>();
        gradients here;
        for (const auto& p : net->parameters())
            here.push_back(p.grad().defined() ? p.grad().clone() : torch::zeros_like(p));
        all.push_back(std::move(here));
        if (s == 0)
            for (const auto& b : net->buffers()) out.buffers.push_back(b.clone());
    }
    out.sum = tree_sum(all, 0, shards);
    out.loss /= out.weight;
    return out;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
    const auto x = a.contiguous(), y = b.contiguous();
    return x.nbytes() == y.nbytes() && std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

} // namespace

namespace {
struct on_row {
    double loss = 0.0;
    void on_step(const step_info& s) { loss = s.loss; }
};
} // namespace

TEST_CASE("gradients, loss and buffers of a step are those of the shards added by hand") {
    for (const int world : {1, 3}) {
        scratch dir;
        run_world(world, [&](context& ctx) {
            at::set_num_threads(1);
            auto net = make_tricky();
            const numbers data{100};
            auto config = config_of({.shards = 8, .steps = 8}, dir);
            config.write_files = false;
            sk::Trainer<tiny_ddp, on_row> trainer(ctx, config, on_row{});
            auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
            session.expect_weights();
            session.begin(sk::train::detail::make_input(data));
            sampler order({.samples = 100, .batch = 30, .seed = config.seed});
            while (session.draw()) {
                const auto ids = order.next(0, 1).ids;
                std::unique_lock lock(model_guard);
                const auto wanted = expected_step(net, config, session.finished(), ids);
                while (const void* const micro = session.next_micro())
                    session.backward(tricky_loss(net, *static_cast<const sample_batch*>(micro)));
                lock.unlock();
                session.agree();
                const auto parameters = net->parameters();
                for (std::size_t i = 0; i < parameters.size(); ++i)
                    expect(same_bits(parameters[i].grad(), wanted.sum[i]));
                if (ctx.is_first())
                    for (std::size_t i = 0; i < net->buffers().size(); ++i)
                        expect(same_bits(net->buffers()[i], wanted.buffers[i]));
                session.complete();
                expect(trainer.template callback<on_row>().loss == wanted.loss);
            }
            (void)session.finish();
        });
    }
}

// ---- other worlds, other models -----------------------------------------------------------------

namespace {

/// Steps up to `until`, and the forward and backward passes of one more where the run goes on.
void train_until(session& session, Tricky& net, std::uint64_t until) {
    while (session.draw()) {
        {
            const std::lock_guard lock(model_guard);
            while (const void* const micro = session.next_micro())
                session.backward(tricky_loss(net, *static_cast<const sample_batch*>(micro)));
        }
        if (session.finished() == until) return;
        session.complete();
    }
}

/// `ranks` of them train; those of `goes_on` go on behind step 4 in a world of their own.
std::vector<float> change_world(int ranks, const std::vector<int>& goes_on) {
    const scratch dir;
    auto config = config_of({.shards = 8, .steps = 9}, dir);
    config.write_files = false;
    sk::sim::local_world first(std::vector<std::string>(static_cast<std::size_t>(ranks), "a"));
    sk::sim::local_world second(std::vector<std::string>(goes_on.size(), "a"));
    const auto place_of = [](int rank, std::size_t size) {
        world_info where;
        where.rank = where.local_rank = rank;
        where.world_size = where.local_size = static_cast<int>(size);
        where.host = "here";
        return where;
    };
    std::vector<float> state;
    std::vector<std::optional<sk::error>> errors(static_cast<std::size_t>(ranks));
    const auto body = [&](int r) {
        const sk::dist::comm_options options{.model = "shm"};
        auto comm = sk::dist::make_comm_thread(first.at(r), options);
        std::unique_ptr<sk::dist::comm_thread> again; // outlives what uses it, as comm does
        context ctx(place_of(r, static_cast<std::size_t>(ranks)), &first.at(r), comm.get());
        ctx.use_options(options);
        auto net = make_tricky();
        const numbers data{100};
        // Who leaves puts the generator back, which the others share while these are threads.
        std::unique_lock leaves(model_guard, std::defer_lock);
        sk::Trainer<tiny_ddp> trainer(ctx, config);
        auto session = trainer.open(net, sk::AdamW{}, constant_rate{1e-2});
        session.expect_weights();
        session.begin(sk::train::detail::make_input(data));
        train_until(session, net, 4);
        session.abort(sk::error(sk::errc::aborted, "the network is gone"));
        const auto found = std::ranges::find(goes_on, r);
        if (found == goes_on.end()) return leaves.lock();
        const auto now = static_cast<int>(found - goes_on.begin());
        const bool alone = goes_on.size() == 1;
        if (!alone) again = sk::dist::make_comm_thread(second.at(now), options);
        ctx.rebind(place_of(now, goes_on.size()), alone ? nullptr : &second.at(now), again.get());
        session.rebind();
        train_until(session, net, ~0ULL);
        expect(session.finish().steps == 9);
        if (now == 0) state = state_of(*net);
    };
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            try {
                at::set_num_threads(1);
                body(r);
            } catch (...) {
                errors[static_cast<std::size_t>(r)] = sk::to_error(std::current_exception());
            }
        });
    for (auto& t : threads) t.join();
    for (const int r : goes_on) {
        const auto& e = errors[static_cast<std::size_t>(r)];
        CHECK((e ? std::string(e->what()) : "") == "");
    }
    return state;
}

} // namespace

TEST_CASE("a session that goes on without some of its ranks has the bits of a whole one") {
    const auto whole = change_world(1, {0});
    CHECK(same_bits(change_world(4, {1, 2, 3}), whole)); // the buffers' rank is lost
    CHECK(same_bits(change_world(3, {2}), whole));
    CHECK(same_bits(change_world(2, {0, 1}), whole));
}

namespace {

template <class Strategy>
std::vector<float> run_shards(shape kind, int world, int recompute = 0) {
    std::vector<float> out;
    const scratch dir;
    run_world(world, [&](context& ctx) {
        auto net = make_zoo(kind);
        if (recompute > 0) (void)checkpoint_activations(*net, recompute);
        auto config = quiet_config(dir.path);
        config.max_steps = 8;
        config.clip = 0.5;
        config.scaling.logical_shards = 8;
        sk::Trainer<Strategy> trainer(ctx, config);
        (void)trainer.fit(net, sk::SGD{.momentum = 0.9}, constant_rate{1e-2}, zoo_loss, numbers{},
                          numbers{.n = 5});
        if (ctx.is_first()) out = weights(*net);
    });
    return out;
}

} // namespace

TEST_CASE("models of every shape, blocks that are computed again and halves go by shard") {
    for (const auto kind : all_shapes)
        for (const int recompute : {0, 1}) {
            INFO("shape " << static_cast<int>(kind) << ", recomputes " << recompute);
            const auto alone = run_shards<tiny_ddp>(kind, 1, recompute);
            for (const int world : {2, 3})
                CHECK(same_bits(run_shards<tiny_ddp>(kind, world, recompute), alone));
        }
    using bf16 = sk::DDP<tiny_buckets, sk::precision<sk::bf16>>;
    CHECK(same_bits(run_shards<bf16>(shape::plain, 3), run_shards<bf16>(shape::plain, 1)));
    using f16 = sk::DDP<tiny_buckets, sk::precision<sk::f16>>;
    CHECK(same_bits(run_shards<f16>(shape::plain, 3), run_shards<f16>(shape::plain, 1)));
}

TEST_CASE("the tree has the largest subtrees of each rank's shards, and one root") {
    using namespace sk::train::detail;
    for (const int shards : {1, 4, 8, 64})
        for (int ranks = 1; ranks <= shards; ++ranks) {
            std::vector<shard_node> all;
            int next = 0;
            for (int r = 0; r < ranks; ++r) {
                const auto own = shards_of(shards, r, ranks);
                CHECK(own.first == next);
                CHECK(own.size() >= shards / ranks);
                next = own.last;
                for (const auto& node : subtrees_of(own)) {
                    CHECK(node.first % node.size == 0);
                    all.push_back(node);
                }
            }
            CHECK(next == shards);
            CHECK(merges_of(all).size() + 1 == all.size());
            std::vector<shard_node> row;
            for (const auto& node : all) add_node(row, node, [](std::size_t, std::size_t) {});
            CHECK((row == std::vector<shard_node>{{0, shards}}));
        }
    CHECK((subtrees_of({0, 3}) == std::vector<shard_node>{{0, 2}, {2, 1}}));
    CHECK((subtrees_of({3, 8}) == std::vector<shard_node>{{3, 1}, {4, 4}}));
}

// ---- what is refused ----------------------------------------------------------------------------

namespace {

/// The error of a run with this configuration, in this process.
template <class Strategy, class Data = numbers, class... Rules>
std::string refusal(const std::function<void(run_config&)>& change, bool measures = false,
                    Data data = {}, Rules... rules) {
    const scratch dir;
    auto config = quiet_config(dir.path);
    config.scaling.logical_shards = 4;
    config.max_steps = 3;
    if (change) change(config);
    auto ctx = context::single();
    auto net = make_net();
    try {
        sk::Trainer<Strategy, Rules...> trainer(ctx, config, rules...);
        if (measures)
            trainer.measure(
                sk::metrics_manager{sk::metrics::on("train", sk::metrics::accuracy{.classes = 4})});
        (void)trainer.fit(net, sk::AdamW{}, constant_rate{1e-3}, class_loss, data, numbers{.n = 4});
    } catch (const sk::error& why) {
        return fmt::format("{}: {}", sk::to_string(why.code()), why.what());
    }
    return "nothing";
}

/// Numbered data that is read on.
struct read_on {
    numbers data;
    std::uint64_t at = 0;
    std::optional<sample_batch> next(const stream_share& share) {
        std::vector<std::uint64_t> ids;
        for (std::uint64_t i = 0; i < share.samples; ++i) ids.push_back(at++ % data.n);
        return data.batch(ids);
    }
    [[nodiscard]] std::string state() const { return std::to_string(at); }
    void restore(std::string_view saved) { at = std::stoull(std::string(saved)); }
};

} // namespace

TEST_CASE("logical shards refuse what would depend on the number of ranks, each by name") {
    const auto as_is = std::function<void(run_config&)>();
    CHECK(refusal<sk::DDP<>>(as_is) == "nothing");
    CHECK_THAT(refusal<sk::Single>(as_is), ContainsSubstring("logical shards with Single"));
    CHECK_THAT(refusal<sk::Zero1<>>(as_is), ContainsSubstring("logical shards with Zero1"));
    CHECK_THAT(refusal<sk::Zero2<>>(as_is), ContainsSubstring("logical shards with Zero2"));
    using by_size = sk::auto_wrap_size<1>;
    CHECK_THAT(refusal<sk::FSDP<by_size>>(as_is), ContainsSubstring("logical shards with FSDP"));
    CHECK_THAT(refusal<sk::Hybrid<by_size>>(as_is),
               ContainsSubstring("logical shards with Hybrid"));
    using halves = sk::DDP<sk::bucket<>, sk::precision<sk::bf16, sk::bf16>>;
    CHECK_THAT(refusal<halves>(as_is), ContainsSubstring("summed in 16 bits"));
    CHECK_THAT(refusal<sk::DDP<>>(as_is, false, read_on{}), ContainsSubstring("a stream with"));
    // the loss here shows its metrics nothing
    CHECK(refusal<sk::DDP<>>(as_is, true) == "nothing");
    const auto with = [&](auto change) { return refusal<sk::DDP<>>(change); };
    CHECK_THAT(with([](run_config& c) { c.scaling.logical_shards = 6; }),
               ContainsSubstring("scaling.logical_shards = 6"));
    CHECK_THAT(with([](run_config& c) { c.scaling.logical_shards = -4; }),
               ContainsSubstring("scaling.logical_shards = -4"));
    CHECK_THAT(with([](run_config& c) { c.scaling.logical_shards = 16; }),
               ContainsSubstring("16 logical shards of a batch of 12"));
    CHECK_THAT(with([](run_config& c) { c.accumulation = 2; }),
               ContainsSubstring("an accumulation of 2"));
    run_config many{.scaling = {.logical_shards = 4}};
    expect(many.global_batch >= 5);
    try {
        validate(many, 5);
        FAIL("5 workers had 4 shards");
    } catch (const sk::error& why) {
        CHECK_THAT(why.what(), ContainsSubstring("4 logical shards for 5 workers"));
    }
    const sk::batch_growth more({.at_steps = {1}, .more_micro_batches = true});
    CHECK_THAT((refusal<sk::DDP<>, numbers, sk::batch_growth>(as_is, false, numbers{}, more)),
               ContainsSubstring("2 micro-batches per rank in a run with 4 logical shards"));
}

} // namespace logical_shards_test
