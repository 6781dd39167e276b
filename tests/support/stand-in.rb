# A process of the shape of a puppet run: ruby, running a script named `puppet`, with `apply` or `agent`. It knows nothing
# of Puppet. It takes note of what it looks like itself, evaluates its "manifest" as Ruby (or runs it, where its first line
# says that it is a shell script), and starts commands as Puppet's Exec does (lib/puppet/util/execution.rb): own session, no input, output to a pipe, other descriptors closed, HOME, USER
# and LOGNAME taken away. It starts in 40 ms, so that hundreds of cases take seconds; what Puppet really does is shown in
# tests/puppet.

ROOT = File.dirname(File.dirname(File.expand_path(__FILE__)))
AGAIN = "#{ROOT}/bin/again"
HELPER = "#{ROOT}/bin/helper"

def now
  Process.clock_gettime(Process::CLOCK_BOOTTIME, :nanosecond)
end

started = now
manifest = ARGV.find { |word| word.end_with?('.pp') }
named = ARGV[ARGV.index('--certname') + 1] if ARGV.include?('--certname')
NAME = manifest ? File.basename(manifest, '.pp') : named || 'stdin'
Dir.mkdir("#{ROOT}/past/#{NAME}") unless File.directory?("#{ROOT}/past/#{NAME}")
NTH = (1..).find do |n|
  Dir.mkdir(format("#{ROOT}/past/#{NAME}/%03d", n))
rescue Errno::EEXIST
  false
end
NOTES = format("#{ROOT}/past/#{NAME}/%03d", NTH)

def note(name, text)
  File.binwrite("#{NOTES}/.#{name}", text)
  File.rename("#{NOTES}/.#{name}", "#{NOTES}/#{name}")
end

%w[stat status cmdline environ limits].each { |name| note(name, File.binread("/proc/self/#{name}")) }
note('cwd', Dir.pwd)
note('fds', Dir.children('/proc/self/fd').map { |fd| "#{fd} #{File.readlink("/proc/self/fd/#{fd}") rescue next}" }.compact.join("\n"))
note('started', started.to_s)
at_exit { note('ended', now.to_s) }

# Goes on once the file is there.
def hold(name)
  sleep 0.005 until File.exist?("#{ROOT}/#{name}")
end

$asked = 0

# Starts a command as an Exec does. `bare`: without closing descriptors or taking variables away, as other callers do.
def begin_ask(*words, through: [], env: {}, bare: false)
  reader, writer = IO.pipe
  nth = ($asked += 1)
  pid = fork do
    STDIN.reopen('/dev/null')
    STDOUT.reopen(writer)
    STDERR.reopen(writer)
    Process.setsid
    unless bare
      Dir.children('/proc/self/fd').map(&:to_i).select { |fd| fd > 2 }.each { |fd| IO.for_fd(fd).close rescue nil }
      %w[HOME USER LOGNAME].each { |name| ENV.delete(name) }
    end
    env.each { |name, value| ENV[name] = value }
    exec(*through, AGAIN, *words, close_others: !bare)
  rescue SystemCallError => e
    STDERR.puts(e.message)
    exit!(126)
  end
  writer.close
  [nth, pid, reader]
end

# Waits for it, and notes its status, whether its pipe has lost all writers with it, and its output.
def end_ask(begun)
  nth, pid, reader = begun
  _, status = Process.wait2(pid)
  output = +''
  deadline = now + 5_000_000_000
  closed = false
  until closed || now > deadline
    next unless IO.select([reader], nil, nil, 0.05)
    part = reader.read_nonblock(65_536, exception: false)
    part.nil? ? closed = true : output << part
  end
  pipe = File.readlink("/proc/self/fd/#{reader.fileno}")
  reader.close
  code = status.exitstatus || -status.termsig
  note(format('ask-%03d', nth), "#{code} #{closed ? 'closed' : 'open'} #{pipe}\n#{output}")
  code
end

def ask(*words, **how)
  end_ask(begin_ask(*words, **how))
end

file = manifest || "#{ROOT}/work/#{NAME}.pp"
if NAME == 'stdin'
  eval(STDIN.read)
else
  text = File.read(file)
  text.start_with?('#!/bin/sh') ? exit(system('/bin/sh', '-e', file) ? 0 : 1) : eval(text)
end
