// SPDX-License-Identifier: Apache-2.0
// skein as a C++20 module: the public names of skein.hpp. Written by scripts/check_modules.py --write.
//
//     import skein;
//
// Include the standard headers that a file uses itself, before the import. Macros do not travel: core/check.hpp may be
// included beside the import. CMake: link skein::module.
module;
#include <skein/skein.hpp>

#include <coroutine>

export module skein;

// Without these a file with a coroutine would have to include <coroutine>.
export namespace std {
using std::coroutine_handle;
using std::coroutine_traits;
using std::suspend_always;
using std::suspend_never;
} // namespace std

export namespace skein {
using skein::actor;
using skein::actor_handle;
using skein::actor_id;
using skein::actor_tag;
using skein::all;
using skein::any;
using skein::append;
using skein::as_bytes;
using skein::as_completed;
using skein::as_result;
using skein::as_task;
using skein::as_text;
using skein::available_cores;
using skein::available_memory;
using skein::awaited_t;
using skein::boot_id;
using skein::byte_buffer;
using skein::byte_span;
using skein::call_id;
using skein::call_options;
using skein::call_tag;
using skein::cancel_source;
using skein::cancel_token;
using skein::cancelled_error;
using skein::channel;
using skein::clock;
using skein::completed;
using skein::completion_stream;
using skein::counted_ptr;
using skein::crc32c;
using skein::crc32c_is_hardware;
using skein::deadline_after;
using skein::default_task_retries;
using skein::dir_entry;
using skein::disk;
using skein::duration;
using skein::equal_constant_time;
using skein::errc;
using skein::errno_error;
using skein::error;
using skein::event;
using skein::field_count;
using skein::field_name;
using skein::field_type;
using skein::file;
using skein::finished;
using skein::fnv1a;
using skein::from_hex;
using skein::hmac_sha256;
using skein::intrusive_list;
using skein::job_id;
using skein::job_tag;
using skein::join_path;
using skein::keyed_permutation;
using skein::link_policy;
using skein::list_node;
using skein::load_le;
using skein::loop;
using skein::make_pipe;
using skein::manual_clock;
using skein::monotonic_clock;
using skein::mut_byte_span;
using skein::mutex;
using skein::no_deadline;
using skein::node_id;
using skein::node_tag;
using skein::object_id;
using skein::object_tag;
using skein::open_mode;
using skein::own_arguments;
using skein::parent_path;
using skein::philox;
using skein::philox_counter;
using skein::philox_key;
using skein::philox_stream;
using skein::plain_aggregate;
using skein::posix_disk;
using skein::race;
using skein::random_source;
using skein::read_small_file;
using skein::readable_name;
using skein::ref;
using skein::remote;
using skein::remote_error;
using skein::remote_function;
using skein::result;
using skein::resumption;
using skein::run;
using skein::run_options;
using skein::runtime_context;
using skein::runtime_info;
using skein::scope;
using skein::second_signal;
using skein::seeded_random;
using skein::semaphore;
using skein::sha256;
using skein::sha256_digest;
using skein::sha256_of;
using skein::shield;
using skein::sleep_awaiter;
using skein::sleep_for;
using skein::sleep_until;
using skein::stop_signals;
using skein::store_le;
using skein::strong_id;
using skein::system_clock;
using skein::system_random;
using skein::task;
using skein::task_context;
using skein::task_id;
using skein::task_like;
using skein::task_tag;
using skein::tie_fields;
using skein::time_constants;
using skein::time_point;
using skein::timer_node;
using skein::timer_wheel;
using skein::to_buffer;
using skein::to_error;
using skein::to_hex;
using skein::to_seconds;
using skein::to_string;
using skein::turn_hook;
using skein::type_name;
using skein::unique_fd;
using skein::unique_function;
using skein::unique_number;
using skein::wait_queue;
using skein::waiter;
using skein::with_cancel;
using skein::with_context;
using skein::with_deadline;
using skein::with_scope;
using skein::with_timeout;
using skein::worker_id;
using skein::worker_tag;
using skein::yield;
using skein::yield_awaiter;
} // namespace skein

export namespace skein::cluster {
using skein::cluster::difference;
using skein::cluster::discover;
using skein::cluster::expand_hostlist;
using skein::cluster::group_client;
using skein::cluster::group_options;
using skein::cluster::group_outcome;
using skein::cluster::group_server;
using skein::cluster::group_token;
using skein::cluster::group_variable;
using skein::cluster::hash_of;
using skein::cluster::is_lasting;
using skein::cluster::is_supervised;
using skein::cluster::joined_group;
using skein::cluster::joined_group_options;
using skein::cluster::launch_environment;
using skein::cluster::listening_point;
using skein::cluster::loss_listeners;
using skein::cluster::meeting_point;
using skein::cluster::member_info;
using skein::cluster::process_environment;
using skein::cluster::rank_role;
using skein::cluster::rendezvous;
using skein::cluster::require_same;
using skein::cluster::setting;
using skein::cluster::subscription;
using skein::cluster::supervise;
using skein::cluster::supervisor_options;
using skein::cluster::supervisor_outcome;
using skein::cluster::take_launch_variables;
using skein::cluster::token_variable;
using skein::cluster::variable_reader;
} // namespace skein::cluster

export namespace skein::exit_code {
using skein::exit_code::done;
using skein::exit_code::failed;
using skein::exit_code::usage;
} // namespace skein::exit_code

export namespace skein::limit {
using skein::limit::backlog_bytes;
using skein::limit::call_turn;
using skein::limit::frame_bytes;
using skein::limit::gather_bytes;
using skein::limit::inline_bytes;
using skein::limit::queue_bytes;
} // namespace skein::limit

export namespace skein::logging {
using skein::logging::append_json_string;
using skein::logging::debug;
using skein::logging::enabled;
using skein::logging::error;
using skein::logging::field;
using skein::logging::fields;
using skein::logging::format_json;
using skein::logging::format_text;
using skein::logging::get_level;
using skein::logging::info;
using skein::logging::is_control;
using skein::logging::level;
using skein::logging::record;
using skein::logging::set_level;
using skein::logging::set_sink;
using skein::logging::sink;
using skein::logging::trace;
using skein::logging::warn;
using skein::logging::write;
} // namespace skein::logging

export namespace skein::net {
using skein::net::acceptor;
using skein::net::acceptor_options;
using skein::net::address;
using skein::net::admission;
using skein::net::adopt_unix_stream;
using skein::net::authenticate;
using skein::net::authenticated_stream;
using skein::net::body_crc_flag;
using skein::net::call_options;
using skein::net::caller;
using skein::net::code_error;
using skein::net::connect_patiently;
using skein::net::connected_network;
using skein::net::connection;
using skein::net::connection_options;
using skein::net::connection_statistics;
using skein::net::dial;
using skein::net::dial_patiently;
using skein::net::end_input;
using skein::net::endpoint;
using skein::net::errc_of;
using skein::net::first_link_kind;
using skein::net::first_reserved_kind;
using skein::net::frame;
using skein::net::frame_header;
using skein::net::frame_view;
using skein::net::handshake;
using skein::net::hello_bytes;
using skein::net::identity;
using skein::net::keep_alive;
using skein::net::keep_alive_mode;
using skein::net::limits;
using skein::net::link;
using skein::net::link_end;
using skein::net::link_endpoint;
using skein::net::link_options;
using skein::net::link_statistics;
using skein::net::link_table;
using skein::net::link_table_bounds;
using skein::net::listener;
using skein::net::loop_thread;
using skein::net::make_socket_pair;
using skein::net::message;
using skein::net::message_table;
using skein::net::network;
using skein::net::offload;
using skein::net::offload_pool;
using skein::net::protocol_version;
using skein::net::real_loop;
using skein::net::real_network;
using skein::net::reconnect_policy;
using skein::net::request_keys;
using skein::net::request_options;
using skein::net::request_service;
using skein::net::requests;
using skein::net::resume_mode;
using skein::net::scheme;
using skein::net::side;
using skein::net::socket_pair;
using skein::net::stream;
using skein::net::system_error;
using skein::net::to_string;
using skein::net::token;
using skein::net::wait_readable;
} // namespace skein::net

export namespace skein::rt {
using skein::rt::amount;
using skein::rt::boot;
using skein::rt::boot_variable;
using skein::rt::build_id;
using skein::rt::check_demand;
using skein::rt::check_total;
using skein::rt::child;
using skein::rt::child_end;
using skein::rt::child_options;
using skein::rt::child_process;
using skein::rt::children;
using skein::rt::constraint;
using skein::rt::custom_resource;
using skein::rt::evicted;
using skein::rt::exit_status;
using skein::rt::failure;
using skein::rt::fits;
using skein::rt::function_record;
using skein::rt::gpu_set;
using skein::rt::grant;
using skein::rt::group_request;
using skein::rt::group_strategy;
using skein::rt::host_name;
using skein::rt::host_resources;
using skein::rt::is_worker;
using skein::rt::last_words_variable;
using skein::rt::leave_last_words;
using skein::rt::local_children;
using skein::rt::local_workers;
using skein::rt::local_workers_options;
using skein::rt::most_boot_bytes;
using skein::rt::name_process;
using skein::rt::notice;
using skein::rt::open_standard_files;
using skein::rt::parse_resources;
using skein::rt::peer;
using skein::rt::place_id;
using skein::rt::place_tag;
using skein::rt::placement;
using skein::rt::placement_group_id;
using skein::rt::placement_group_tag;
using skein::rt::process_options;
using skein::rt::process_title;
using skein::rt::process_usage;
using skein::rt::registry;
using skein::rt::request;
using skein::rt::request_id;
using skein::rt::request_tag;
using skein::rt::resource_limits;
using skein::rt::resources;
using skein::rt::restart_policy;
using skein::rt::restart_rules;
using skein::rt::runtime;
using skein::rt::runtime_options;
using skein::rt::runtime_stats;
using skein::rt::scheduler;
using skein::rt::scheduler_options;
using skein::rt::shared_memory;
using skein::rt::signal_name;
using skein::rt::slot_id;
using skein::rt::started_as;
using skein::rt::stop;
using skein::rt::take_boot;
using skein::rt::to_string;
using skein::rt::wait;
using skein::rt::work_for_driver;
using skein::rt::worker_main;
using skein::rt::worker_role;
} // namespace skein::rt

export namespace skein::wire {
using skein::wire::codec;
using skein::wire::decode;
using skein::wire::encodable;
using skein::wire::encode;
using skein::wire::fixed_layout;
using skein::wire::limits;
using skein::wire::reader;
using skein::wire::schema_hash;
using skein::wire::schema_text;
using skein::wire::writer;
} // namespace skein::wire
