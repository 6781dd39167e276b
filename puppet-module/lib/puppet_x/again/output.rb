# frozen_string_literal: true

module PuppetX; end
module PuppetX::Again; end

# Output of a program, for facts. Runs it without a shell, for at most ten seconds, which a busy machine may need.
module PuppetX::Again::Output
  # Output as UTF-8 text, which may have invalid bytes.
  #
  # @param most [Integer] maximum size of the output in bytes
  # @param errors [Boolean] whether to include standard error
  # @raise [RuntimeError] if the program takes longer or prints more
  def self.of(command, most:, errors:)
    deadline = now + 10
    reader, writer = IO.pipe
    child = Process.spawn(*command, in: File::NULL, out: writer, err: errors ? writer : File::NULL)
    writer.close
    text = +''
    loop do
      raise "#{command.first} takes too long" unless IO.select([reader], nil, nil, [deadline - now, 0].max)

      text << reader.readpartial(65_536)
      raise "#{command.first} says too much" if text.bytesize > most
    end
  rescue EOFError
    text.force_encoding(Encoding::UTF_8)
  ensure
    [reader, writer].compact.each(&:close)
    reap(child, deadline) if child
  end

  def self.reap(child, deadline)
    until Process.wait(child, Process::WNOHANG)
      if now > deadline
        Process.kill(:KILL, child)
        return Process.detach(child)
      end
      sleep 0.001
    end
  end

  def self.now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end
end
