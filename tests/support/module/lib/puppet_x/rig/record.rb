# Writes down what the ruby process that runs puppet is, as the kernel shows it: one directory per record under
# RIG_RUNS, named after the moment. Loaded twice: by RUBYOPT=-r, as the first thing a puppet process does after its
# exec (kind `exec`), and by the type rig_run, while a catalog is applied (kind `catalog`; also in a daemon's child,
# which no exec announces).
module RigRecord
  module_function

  def now
    Process.clock_gettime(Process::CLOCK_BOOTTIME, :nanosecond)
  end

  # State letter and start time of a process, from after the last parenthesis of its stat line.
  def state_and_start(stat)
    fields = stat[(stat.rindex(')') + 2)..-1].split
    [fields[0], fields[19]]
  end

  def record(kind, runs)
    at = now
    final = format('%s/%020d-%d-%s', runs, at, Process.pid, kind)
    draft = format('%s/.%020d-%d-%s', runs, at, Process.pid, kind)
    earlier = earlier_processes(runs)
    Dir.mkdir(draft)
    %w[cmdline environ status stat limits].each { |name| File.binwrite("#{draft}/#{name}", File.binread("/proc/self/#{name}")) }
    File.write("#{draft}/cwd", File.readlink('/proc/self/cwd'))
    File.write("#{draft}/fds", fds)
    File.write("#{draft}/at", at.to_s)
    File.write("#{draft}/earlier", earlier)
    File.rename(draft, final)
    final
  end

  def fds
    Dir.children('/proc/self/fd').sort_by(&:to_i).map do |fd|
      "#{fd} #{File.readlink("/proc/self/fd/#{fd}")}\n"
    rescue SystemCallError
      ''
    end.join
  end

  # Which of the processes recorded before are still running (a zombie has ended): "PID running|ended".
  def earlier_processes(runs)
    Dir.glob("#{runs}/0*").sort.map do |dir|
      recorded = File.read("#{dir}/stat")
      pid = recorded.to_i
      next '' if pid == Process.pid

      "#{pid} #{running?(pid, recorded) ? 'running' : 'ended'}\n"
    end.uniq.join
  end

  def running?(pid, recorded)
    state, start = state_and_start(File.read("/proc/#{pid}/stat"))
    start == state_and_start(recorded)[1] && !%w[Z X].include?(state)
  rescue SystemCallError
    false
  end

  def at_start
    argv = File.binread('/proc/self/cmdline').split("\0")
    script = argv.index { |word| word.end_with?('/puppet') || word == 'puppet' }
    return unless script && %w[apply agent].include?(argv[script + 1]) && ENV['RIG_RUNS']

    dir = record('exec', ENV['RIG_RUNS'])
    # The first handler to be registered is the last to run: puppet has finished, let go of its lock and
    # removed its traps when this one begins. RIG_LINGER keeps the process alive after all that.
    at_exit do
      sleep ENV['RIG_LINGER'].to_f if ENV['RIG_LINGER']
      File.write(dir + '/ended', now.to_s)
    end
  end
end

# Once per process, by whichever path the file is loaded; the type loads it again from the module path.
unless defined?($rig_started)
  $rig_started = true
  require_relative 'bytecode'
  RigRecord.at_start
end
